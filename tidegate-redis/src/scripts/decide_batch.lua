-- Purpose  Decide plans one after the other: apply every check of a plan to its state, combine the results, then change the
--          states. Every key is read once and, if its state changed, written once after the last plan. It must be one script: a
--          plan is all or nothing, and no other request may run in between. With FULL, for a server without memory, only keys
--          that exist are written.
-- KEYS[k]  the keys of the plans, each once; those of streams come last
-- ARGV[1]  packed 16-bit integers: 8 and the number of streams, if there are any; for each plan one of
--          0; limit and key of its only check
--          1; units; number of checks; for each check its limit, its key, and 1 if takes from this key are counted, else 0. All
--          checks are enforced. Plans of this kind take from a counted key by the same limit. A plan of several units stands for
--          as many equal plans of one unit
--          2; units; number of checks; for each check its limit, its key, and the overflow bucket that decides if the key does not
--          exist, or 0
--          3; 0 for a peek, else 1; 1 if each check counts on its own, else 0; units in four numbers, the lowest first; number of
--          checks; checks as for 2
--          4; as for 3, and after each check the number of the penalty among the checks that its denial strikes, from 1, or 0
--          5; owner and time to live of a reservation, each in four numbers, the lowest first; as for 4, and after each check the
--          cost that it holds in four numbers. The highest is 32768 if it takes its cost instead
--          11, 12 and 13; as for 3, 4 and 5, and after each check the keys of the stream and of the generation of its ledger, both 0 if
--          it has none, and the generation in four numbers. Every change of such a check is appended to the stream, as one field of ten
--          packed doubles and the part of the key after the partition: kind of the entry (1 consume, 2 reserve), now, index of the
--          period, units consumed in it and in the one before, units held, their owner, when they run out, hard limit, generation
-- ARGV[2]  for each limit eleven packed doubles: algorithm; role of the check (0 enforced, 1 shadow, 2 and up an any-of group);
--          maximum TTL of the state in microseconds, or infinite; the arguments of the limit after `units`, padded
-- ARGV[3]  tests only: now, in microseconds
-- Reply    one string: now as a packed double; for each plan a semicolon and one of
--          "~", once for all plans: the periods of a quota do not contain now, and nothing was decided
--          "!" and the number of an enforced check whose state is unreadable: the plan changed nothing
--          "?" and, separated by commas, the generation that was found for each check with a ledger, or 0 if there is none: one of them
--          is another than that in the plan, and the plan changed nothing
--          "%": a stream is full, or the server is, and the plan changed nothing
--          "e" for a reservation that has ended, "k" for one that exists with another cost: the plan changed nothing
--          "r" for a reservation that was made before, in which what was taken in place of held is not taken again;
--          unless units is 1, "g" and the units granted; then for each check a letter and the state that it was decided on; then "t"
--          and the units that earlier plans took from this state, if any; then for a state with a maximum TTL "m" and the
--          milliseconds that it had left; then "l" and the id of the entry that was appended, if any, like "l1700000000000-0". A state
--          with holds is followed by "h" and, separated by commas, the units that
--          others hold, the instant at which the last hold runs out, and the number of holds and remembered ends. Letters of checks that
--          admit are small, of others capital: a own state, s overflow bucket; n and o likewise, but nothing was written, since the key
--          does not exist and the server is full; U a shadow check whose state is unreadable; p a penalty that admits the request and
--          was struck
local keys, format, huge = KEYS, string.format, math.huge
-- A function of Lua returns fewer than 8,000 values.
local plans = { struct.unpack('<' .. string.rep('H', math.min(#ARGV[1] / 2, 4000)), ARGV[1]) }
for at = 8001, #ARGV[1], 8000 do
  local part = { struct.unpack('<' .. string.rep('H', math.min((#ARGV[1] - at + 1) / 2, 4000)), ARGV[1], at) }
  for i = 1, #part do plans[(at - 1) / 2 + i] = part[i] end
end
local limit_of = {}
for at = 1, #ARGV[2], 88 do
  local limit = { struct.unpack('<ddddddddddd', ARGV[2], at) }
  limit[1] = limits[limit[1]]
  if limit[1] == quota and (now < limit[8] or now >= limit[11]) then return struct.pack('<dc2', now, ';~') end
  limit_of[#limit_of + 1] = limit
end

local streams = plans[1] == 8 and plans[2] or 0
local values = #keys - streams
local states, missing, is_new = {}, {}, {}
if values > 0 then states = call('MGET', unpack(keys, 1, values)) end
for k = 1, values do
  if not states[k] then missing[#missing + 1], is_new[k] = keys[k], true end
end
-- For MGET, a value of another type is as if it did not exist. It is unreadable instead, like '?', and never overwritten.
if #missing > 0 and call('EXISTS', unpack(missing)) > 0 then
  for k = 1, values do
    if not states[k] and call('EXISTS', keys[k]) == 1 then states[k] = '?' end
  end
end

-- Applies an operation to a state with holds, or makes a hold. Returns nil for a state without holds that is unreadable.
local function apply_beside_holds(limit, state, op, units, owner, amount, ttl)
  return holds(limit[1], limit[1] == token_bucket, state, now, op, units, owner, amount, ttl,
    limit[4], limit[5], limit[6], limit[7], limit[8], limit[9], limit[10], limit[11])
end

-- The number in four numbers of a plan.
local function number(at)
  return plans[at] + plans[at + 1] * 65536 + plans[at + 2] * 4294967296 + plans[at + 3] * 281474976710656
end

local function apply(limit, state, op, units)
  local admits, changed, ends, seen, index, consumed, late = limit[1](state, now, op, units,
    limit[4], limit[5], limit[6], limit[7], limit[8], limit[9], limit[10], limit[11])
  if admits == nil then
    local _
    admits, changed, ends, seen, _, index, consumed, late = apply_beside_holds(limit, state, op, units, 0, 0, 0)
  end
  return admits, changed, ends, seen, index, consumed, late
end

-- The entries to append: streams, fields, and the number of the piece of the reply that the id follows, one after the other. By stream,
-- the number of its entries.
local entries, lengths = {}, {}

-- Why a plan with a ledger is not decided: the result of the plan, or nil. The numbers of its ledgers begin at `from`.
local function ledger_refusal(from, width, checks, consume)
  local found, is_same, is_full = {}, true, false
  for i = 1, checks do
    local at = from + width * (i - 1)
    local k, marker = plans[at], plans[at + 1]
    if k > 0 then
      found[#found + 1] = states[marker] and string.match(states[marker], '^%d+$') or '0'
      -- An instance that knows no generation sends 0.
      if found[#found] == '0' or found[#found] ~= format('%d', number(at + 2)) then is_same = false end
      if consume then
        lengths[k] = lengths[k] or redis.pcall('XLEN', keys[k])
        if type(lengths[k]) == 'table' then return format(';!%d', i) end
        if FULL or lengths[k] >= MAX_OUTBOX_ENTRIES then is_full = true end
      end
    end
  end
  return not is_same and ';?' .. table.concat(found, ',') or is_full and ';%' or nil
end

-- Appends an entry for a change of the key k under a limit with a ledger, whose numbers are at `at`.
local function append_entry(at, limit, k, kind, index, consumed, late, held, owner, ends)
  local stream = plans[at]
  entries[#entries + 1] = stream
  entries[#entries + 1] = struct.pack('<dddddddddd', kind, now, index, consumed, late, held, owner, ends, limit[6],
    number(at + 2)) .. string.sub(keys[k], string.find(keys[k], '}', 1, true) + 1)
  lengths[stream] = lengths[stream] + 1
end

-- By key: when a changed state expires; the TTL of an unchanged one; and in place of a state whose takes are counted its limit, the
-- state before the takes, the units that this state has room for, the units taken, and the results of checks in the reply.
local expiries, ttls, counters = {}, {}, {}

-- Ends the counting of takes. Returns the state after them.
local function settle(k)
  local limit, state, taken = counters[k][1], counters[k][2], counters[k][4]
  counters[k] = nil
  if taken > 0 then
    local _, changed, ends = apply(limit, state, TAKE, taken)
    if changed then state, expiries[k] = changed, ends end
  end
  states[k] = state
  return state
end

-- Starts to count takes. Returns the counter; nil if the next take must be applied, since the state is unreadable or rebased.
local function count(limit, k)
  local state = states[k]
  if state == nil then state = settle(k) end
  local room, _, _, seen = apply(limit, state, ROOM, 65535)
  if room == nil then return nil end
  if room == 0 then
    local _, changed = apply(limit, state, TAKE, 1)
    if changed then return nil end
  end
  local is_unstored = FULL and is_new[k]
  seen = seen or state or ''
  local admits, denies = (is_unstored and 'n' or 'a') .. seen, (is_unstored and 'N' or 'A') .. seen
  counters[k], states[k] = { limit, state, room, 0, admits, denies }, nil
  return counters[k]
end

local function ttl_of(k)
  if expiries[k] then
    local ttl = (expiries[k] - now) / 1000 + margin
    return ttl - ttl % 1
  end
  ttls[k] = ttls[k] or call('PTTL', keys[k])
  return ttls[k]
end
