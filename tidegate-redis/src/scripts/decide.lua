-- Purpose    Decide a plan: apply every check to its stored state, combine the results, then write. Without CONSUME nothing
--            is written, for a peek. It must be one script: a plan is all or nothing, and no other request may run in between.
--            With ANONYMOUS, states of unauthenticated subjects may have a maximum TTL or an overflow bucket.
-- KEYS[i]    key of the state of check i
-- KEYS[n+i]  with ANONYMOUS: the overflow bucket that decides if KEYS[i] does not exist, or KEYS[i] again
-- ARGV[1]    packed doubles: units requested; 1 if each check counts on its own, else 0; with ANONYMOUS, for each check the
--            maximum TTL of its state in microseconds, or infinite
-- ARGV[i+1]  packed doubles: algorithm; role (0 enforced, 1 shadow, 2 and up an any-of group); the arguments of the limit
--            after `units`
-- ARGV[n+2]  tests only: now, in microseconds
-- Reply      now; bit i-1 is set if check i admits; units granted; for each check the state it was decided on; with ANONYMOUS, for
--            each check -1 if the overflow bucket decided, otherwise the milliseconds that a state with a maximum TTL had left
local units, count_each = struct.unpack('<dd', ARGV[1])
local algorithms, roles, stored, room = {}, {}, {}, {}
local admitted, value, expiry, view = {}, {}, {}, {}
local keys, max_ttl, mark = KEYS
if ANONYMOUS then keys, max_ttl, mark = {}, {}, {} end

local function apply(i, state, op, times)
  return limits[algorithms[i]](state, now, op, times, struct.unpack(layouts[algorithms[i]], ARGV[i + 1], 17))
end

local best_of_group = {}
for i = 1, checks do
  algorithms[i], roles[i] = struct.unpack('<dd', ARGV[i + 1])
  stored[i] = call('GET', KEYS[i])
  if ANONYMOUS then
    keys[i], max_ttl[i], mark[i] = KEYS[i], struct.unpack('<d', ARGV[1], 9 + 8 * i), 0
    if stored[i] then
      if CONSUME and max_ttl[i] < math.huge then
        mark[i] = math.max(call('PTTL', KEYS[i]) - margin + MARGIN / 1000, 0)
      end
    elseif KEYS[checks + i] ~= KEYS[i] then
      keys[i], max_ttl[i], mark[i] = KEYS[checks + i], math.huge, -1
      stored[i] = call('GET', keys[i])
    end
  end
  if units == 1 then
    admitted[i], value[i], expiry[i], view[i] = apply(i, stored[i], TAKE, 1)
    room[i] = admitted[i] and 1 or 0
  else
    admitted[i] = apply(i, stored[i], ROOM, units)
    room[i] = admitted[i]
  end
  if admitted[i] == nil then return redis.error_reply(string.format('UNREADABLE %d', i)) end
  if roles[i] > 1 then best_of_group[roles[i]] = math.max(best_of_group[roles[i]] or 0, room[i]) end
end

local granted = units
for i = 1, checks do
  if roles[i] == 0 then granted = math.min(granted, room[i]) end
end
for _, best in pairs(best_of_group) do granted = math.min(granted, best) end

local bits, taken = 0, math.max(granted, 1)
for i = 1, checks do
  if units ~= 1 then admitted[i], value[i], expiry[i], view[i] = apply(i, stored[i], TAKE, taken) end
  local counts_alone = count_each == 1 and roles[i] ~= 1
  if admitted[i] then
    bits = bits + 2 ^ (i - 1)
    if granted == 0 and not counts_alone then value[i] = nil end
  elseif counts_alone and CONSUME then
    local _, charged, charged_expiry = apply(i, stored[i], CHARGE, taken)
    if charged then
      stored[i], value[i], expiry[i] = charged, charged, charged_expiry
      _, _, _, view[i] = apply(i, charged, TAKE, taken)
    end
  end
end
local reply = { now, bits, granted }
for i = 1, checks do
  if CONSUME and value[i] then
    if ANONYMOUS then expiry[i] = math.min(expiry[i], now + max_ttl[i]) end
    call('PSETEX', keys[i], string.format('%d', (expiry[i] - now) / 1000 + margin), value[i])
  end
  reply[i + 3] = view[i] or stored[i]
  if ANONYMOUS then reply[checks + i + 3] = mark[i] end
end
return reply
