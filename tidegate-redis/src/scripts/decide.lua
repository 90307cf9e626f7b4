-- Purpose    Decide a plan: judge every check on what is there, combine, then write; or only judge, for a peek. It must be
--            one script: a plan is all or nothing, and nobody may come between its checks.
--            Of subjects that nobody vouches for (STRANGERS), there may be too many, or they are forgotten early.
-- KEYS[i]    where the state of check i is
-- KEYS[n+i]  for strangers: the overflow bucket that decides if there is no state, or the same key again
-- ARGV[1]    eight-byte numbers: units asked for; 1 if each check counts on its own, else 0; for strangers, check by check, how
--            long its state is remembered at most, in microseconds, or infinite
-- ARGV[i+1]  eight-byte numbers: kind; role (0 enforced, 1 shadow, 2 and up a group); what the limit takes after its units
-- ARGV[n+2]  tests only: now, in microseconds
-- Reply      now; which checks admit, as bits; units granted; what was found, check by check; for strangers, check by check,
--            -1 if the overflow bucket decided, otherwise how many milliseconds a state that is forgotten early had left
local units, count_each = struct.unpack('<dd', ARGV[1])
local kinds, roles, found, room = {}, {}, {}, {}
local admitted, value, expiry, view = {}, {}, {}, {}
local keys, longest, mark = KEYS
if STRANGERS then keys, longest, mark = {}, {}, {} end

local function apply(i, state, op, times)
  return limits[kinds[i]](state, now, op, times, struct.unpack(layouts[kinds[i]], ARGV[i + 1], 17))
end

local best_of_group = {}
for i = 1, checks do
  kinds[i], roles[i] = struct.unpack('<dd', ARGV[i + 1])
  found[i] = call('GET', KEYS[i])
  if STRANGERS then
    keys[i], longest[i], mark[i] = KEYS[i], struct.unpack('<d', ARGV[1], 9 + 8 * i), 0
    if found[i] then
      if CONSUME and longest[i] < math.huge then
        mark[i] = math.max(call('PTTL', KEYS[i]) - margin + MARGIN / 1000, 0)
      end
    elseif KEYS[checks + i] ~= KEYS[i] then
      keys[i], longest[i], mark[i] = KEYS[checks + i], math.huge, -1
      found[i] = call('GET', keys[i])
    end
  end
  if units == 1 then
    admitted[i], value[i], expiry[i], view[i] = apply(i, found[i], TAKE, 1)
    room[i] = admitted[i] and 1 or 0
  else
    admitted[i] = apply(i, found[i], ROOM, units)
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

local bits, asked = 0, math.max(granted, 1)
for i = 1, checks do
  if units ~= 1 then admitted[i], value[i], expiry[i], view[i] = apply(i, found[i], TAKE, asked) end
  local counts = count_each == 1 and roles[i] ~= 1
  if admitted[i] then
    bits = bits + 2 ^ (i - 1)
    if granted == 0 and not counts then value[i] = nil end
  elseif counts and CONSUME then
    local _, charged, until_then = apply(i, found[i], CHARGE, asked)
    if charged then
      found[i], value[i], expiry[i] = charged, charged, until_then
      _, _, _, view[i] = apply(i, charged, TAKE, asked)
    end
  end
end
local reply = { now, bits, granted }
for i = 1, checks do
  if CONSUME and value[i] then
    if STRANGERS then expiry[i] = math.min(expiry[i], now + longest[i]) end
    call('PSETEX', keys[i], string.format('%d', (expiry[i] - now) / 1000 + margin), value[i])
  end
  reply[i + 3] = view[i] or found[i]
  if STRANGERS then reply[checks + i + 3] = mark[i] end
end
return reply
