-- Purpose  Decide plans one after the other: apply every check of a plan to its state, combine the results, then change the
--          states. Every key is read once and, if its state changed, written once after the last plan. It must be one script: a
--          plan is all or nothing, and no other request may run in between. With FULL, for a server without memory, only keys
--          that exist are written.
-- KEYS[k]  the keys of the plans, each once; those of streams come last
-- ARGV[1]  packed 16-bit integers: the number of streams; 1 if there are plans of layout 1, else 0; the largest width of plans of layout 2,
--          or 0; then for each plan its layout and
--          layout 0, a plan of one check: limit; key
--          layout 1, enforced checks: units; number of checks; for each check its limit, its key, and 1 if takes from this key are
--          counted, else 0. Plans of this layout take from a counted key by the same limit. A plan of several units stands for as many
--          equal plans of one unit
--          layout 2, any plan: 0 all or nothing, 1 each check counts on its own, 2 a peek; width, which is 3, 4, 5 or 8; number of
--          checks; units; with a width of 5 and 8 owner and time to live of a reservation; for each check the first `width` of: its
--          limit; its key; the overflow bucket that decides if the key does not exist; the number of the penalty among the checks that
--          its denial strikes, from 1; the units that a reservation holds, or none if it takes its cost at once; the stream of its
--          ledger; the key of the generation; the generation. Each is 0 if there is none
-- ARGV[2]  for each limit eleven packed doubles: algorithm; role of the check (0 enforced, 1 shadow, 2 and up an any-of group);
--          maximum TTL of the state in microseconds, or infinite; the arguments of the limit after `units`, padded
-- ARGV[3]  packed doubles: numbers, which plans of layout 2 refer to by their place, from 1: units, owner, time to live, units held,
--          generation
-- ARGV[4]  tests only: now, in microseconds
-- Reply    one string:
--            reply  = now { ";" result }                one result for each plan, in order; now is a packed double
--            result = "~"                               the only one: the periods of a quota do not contain now; nothing was decided
--                   | "!" number                        the state of this enforced check, from 1, is unreadable; nothing was changed
--                   | "?" number { "," number }         the generation that was found for each check with a ledger, or 0: one of them
--                                                       is another than that in the plan; nothing was changed
--                   | "%"                               a stream is full, or the server is; nothing was changed
--                   | "e"                               the reservation has ended; nothing was changed
--                   | "k"                               the reservation exists with another cost; nothing was changed
--                   | [ "r" ] [ "g" number ] { check }  r: the reservation was made before, and what was taken in place of held is not
--                                                       taken again; g: the units granted, if the plan has more than one
--            check  = letter state [ "h" number "," number "," number ] [ "t" number ] [ "m" number ] [ "l" number "-" number ]
--                                                       state: on which it was decided; h, of a state with holds: the units that others
--                                                       hold, when the last hold runs out, the number of holds and remembered ends;
--                                                       t: the units that earlier plans took from the state; m, of a state with a
--                                                       maximum TTL: the milliseconds left; l: the id of the entry in the stream
--            letter = "a" | "s"                         own state, overflow bucket
--                   | "n" | "o"                         likewise, but nothing was written: the key does not exist, the server is full
--                   | "A" | "S" | "N" | "O"             likewise, of checks that deny
--                   | "p"                               a penalty that admits the request and was struck
--                   | "U"                               a shadow check whose state is unreadable
--            state  = { digit | "," }
local keys, format, huge, ENFORCED, SHADOW, EACH_COUNTS, PEEK = KEYS, string.format, math.huge, 0, 1, 1, 2

-- The values in `text`, each of `size` bytes, which `letter` unpacks. A function of Lua returns fewer than 8,000 values.
local function unpack_all(letter, size, text)
  local count = #text / size
  local values = { struct.unpack('<' .. string.rep(letter, math.min(count, 4000)), text) }
  for from = 4000, count - 1, 4000 do
    local part = { struct.unpack('<' .. string.rep(letter, math.min(count - from, 4000)), text, from * size + 1) }
    for i = 1, #part do values[from + i] = part[i] end
  end
  values[count + 1] = nil -- where struct.unpack has stopped
  return values
end

local plans, numbers = unpack_all('H', 2, ARGV[1]), #ARGV[3] > 0 and unpack_all('d', 8, ARGV[3]) or {}
numbers[0] = 0
local limit_of = {}
for at = 1, #ARGV[2], 88 do
  local limit = { struct.unpack('<ddddddddddd', ARGV[2], at) }
  limit[1] = limits[limit[1]]
  if limit[1] == quota and (now < limit[8] or now >= limit[11]) then return struct.pack('<dc2', now, ';~') end
  limit_of[#limit_of + 1] = limit
end

-- By key: the state, or false; whether the key does not exist; when a changed state expires.
local states, is_new, expiries = {}, {}, {}
local values, missing = #keys - plans[1], {}
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

-- Takes from a key that three or more plans take from are counted instead of applied one by one: the limit says once how many units it
-- has room for, and later takes as many at once as were granted. Meanwhile a key has a counter in place of a state, which is nil. Applied
-- one by one, 64 plans of a tenant, a client and a rule took 48 % more, 8 plans 10 %.
local counters, settle, count
if plans[2] > 0 then
  counters = {}

  -- Ends the counting of takes from a key. Returns the state after them.
  function settle(k)
    local counter = counters[k]
    local state = counter.state
    counters[k] = nil
    if counter.taken > 0 then
      local _, value, expiry = apply(counter.limit, state, TAKE, counter.taken)
      if value then state, expiries[k] = value, expiry end
    end
    states[k] = state
    return state
  end

  -- Starts to count the takes from a key. Returns the counter; nil if the next take must be applied, since the state is unreadable or
  -- rebased.
  function count(limit, k)
    local state = states[k]
    if state == nil then state = settle(k) end
    local room, _, _, view = apply(limit, state, ROOM, 65535)
    if room == nil then return nil end
    if room == 0 then
      local _, value = apply(limit, state, TAKE, 1)
      if value then return nil end
    end
    local seen, is_stateless = view or state or '', FULL and is_new[k]
    counters[k], states[k] = {
      limit = limit, state = state, room = room, taken = 0,
      admits = (is_stateless and 'n' or 'a') .. seen, denies = (is_stateless and 'N' or 'A') .. seen,
    }, nil
    return counters[k]
  end
end
