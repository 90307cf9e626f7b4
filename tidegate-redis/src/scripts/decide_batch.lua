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
--          milliseconds that it had left. A state with holds is followed by "h" and, separated by commas, the units that
--          others hold, the instant at which the last hold runs out, and the number of holds and remembered ends. Letters of checks that
--          admit are small, of others capital: a own state, s overflow bucket; n and o likewise, but nothing was written, since the key
--          does not exist and the server is full; U a shadow check whose state is unreadable; p a penalty that admits the request and
--          was struck
local keys, format, huge = KEYS, string.format, math.huge
local plans = { struct.unpack('<' .. string.rep('H', #ARGV[1] / 2), ARGV[1]) }
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

-- The entries to append: streams and fields, one after the other. By stream, the number of its entries.
local entries, lengths = {}, {}

-- Why a plan with a ledger is not decided: the result of the plan, or nil. The numbers of its ledgers begin at `from`.
local function ledger_refusal(from, width, checks, consume)
  local found, is_same, is_full = {}, true, false
  for i = 1, checks do
    local at = from + width * (i - 1)
    local k, marker = plans[at], plans[at + 1]
    if k > 0 then
      found[#found + 1] = states[marker] and string.match(states[marker], '^%d+$') or '0'
      if found[#found] ~= format('%d', number(at + 2)) then is_same = false end
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

local reply, last, at, past_plans = { struct.pack('<d', now) }, 1, streams > 0 and 3 or 1, #plans
-- By check of a plan.
local key, stored, shared, ttl, room_of, counter_of, taken_texts = {}, {}, {}, {}, {}, {}, {}
local admitted, value, expiry, view, period, consumed, late, is_made = {}, {}, {}, {}, {}, {}, {}, {}
while at < past_plans do
  local kind = plans[at]
  if kind == 0 then
    local limit, k = limit_of[plans[at + 1]], plans[at + 2]
    at = at + 3
    local state = states[k]
    if state == nil then state = settle(k) end
    local admits, changed, ends, seen = limit[1](state, now, TAKE, 1,
      limit[4], limit[5], limit[6], limit[7], limit[8], limit[9], limit[10], limit[11])
    if admits == nil then admits, changed, ends, seen = apply_beside_holds(limit, state, TAKE, 1, 0, 0, 0) end
    if admits == nil then
      last = last + 1
      reply[last] = ';!1'
    else
      if changed then states[k], expiries[k] = changed, ends end
      if FULL and is_new[k] then
        reply[last + 1] = admits and ';n' or ';N'
      else
        reply[last + 1] = admits and ';a' or ';A'
      end
      last = last + 2
      reply[last] = seen or state or ''
    end
  elseif kind == 1 then
    local units, checks, first, header = plans[at + 1], plans[at + 2], at + 3, last + 1
    local granted, unreadable = units, nil
    reply[header] = ';' -- in order: a table with gaps is slow
    at, last = first, header
    for i = 1, checks do
      local k, room, counter = plans[at + 1], nil, nil
      if plans[at + 2] == 1 then counter = counters[k] or count(limit_of[plans[at]], k) end
      counter_of[i] = counter
      if counter then
        local taken = counter[4]
        room, last = counter[3] - taken, last + 1
        reply[last] = room > 0 and counter[5] or counter[6]
        if taken > 0 then
          local text = taken_texts[taken]
          if not text then
            text = format('t%d', taken)
            taken_texts[taken] = text
          end
          last = last + 1
          reply[last] = text
        end
      else
        local limit, state = limit_of[plans[at]], states[k]
        if state == nil then state = settle(k) end
        local seen
        if units == 1 then
          local admits
          admits, value[i], expiry[i], seen = limit[1](state, now, TAKE, 1,
            limit[4], limit[5], limit[6], limit[7], limit[8], limit[9], limit[10], limit[11])
          if admits == nil then
            admits, value[i], expiry[i], seen = apply_beside_holds(limit, state, TAKE, 1, 0, 0, 0)
            if admits == nil then unreadable = unreadable or i end
          end
          room = admits and 1 or 0
        else
          room = limit[1](state, now, ROOM, units,
            limit[4], limit[5], limit[6], limit[7], limit[8], limit[9], limit[10], limit[11])
          if room == nil then
            local _
            room, _, _, seen = apply_beside_holds(limit, state, ROOM, units, 0, 0, 0)
          end
          if room == nil then unreadable, room = unreadable or i, 0 end
        end
        if FULL and is_new[k] then
          reply[last + 1] = room > 0 and 'n' or 'N'
        else
          reply[last + 1] = room > 0 and 'a' or 'A'
        end
        last = last + 2
        reply[last] = seen or state or ''
        room_of[i] = room
      end
      at = at + 3
      if room < granted then granted = room end
    end
    if unreadable then
      reply[header], last, checks = format(';!%d', unreadable), header, 0
    elseif units ~= 1 then
      reply[header] = format(';g%d', granted)
    end
    for i = 1, checks do
      local counter = counter_of[i]
      if counter then
        counter[4] = counter[4] + granted
      else
        local k = plans[first + 3 * i - 2]
        if units ~= 1 then
          local _
          _, value[i], expiry[i] = apply(limit_of[plans[first + 3 * i - 3]], states[k], TAKE, granted > 0 and granted or 1)
        end
        if value[i] and (granted > 0 or room_of[i] == 0) then states[k], expiries[k] = value[i], expiry[i] end
      end
    end
  else
    local owner, hold_ttl, refusal, is_repeat, has_ledger = 0, 0, nil, false, kind > 8
    if has_ledger then kind = kind - 8 end
    if kind == 5 then owner, hold_ttl, at = number(at + 1), number(at + 5), at + 8 end
    local units, consume, count_each, checks = plans[at + 1], true, false, plans[at + 2]
    at = at + 3
    local width = kind == 5 and 8 or kind == 4 and 4 or 3
    if kind >= 3 then
      consume, count_each = units == 1, checks == 1
      units, checks, at = number(at), plans[at + 4], at + 5
    end
    local first, granted, best, unreadable, not_decided, ledger = at, units, nil, nil, nil, nil
    if has_ledger then
      ledger, width = first + width, width + 6
      not_decided = ledger_refusal(ledger, width, checks, consume)
      if not_decided then at, checks = first + width * checks, 0 end
    end
    for i = 1, checks do
      local limit, k, overflow, hold_at = limit_of[plans[at]], plans[at + 1], plans[at + 2], at + 4
      at = at + width
      local role, state = limit[2], states[k]
      if state == nil then state = settle(k) end
      shared[i], ttl[i] = false, nil
      if state then
        if consume and limit[3] < huge then ttl[i] = math.max(ttl_of(k) - margin + MARGIN / 1000, 0) end
      elseif overflow > 0 then
        k, shared[i], state = overflow, true, states[overflow]
        if state == nil then state = settle(k) end
      end
      key[i], stored[i] = k, state
      local room
      if kind == 5 and plans[hold_at + 3] < 32768 then
        local found
        admitted[i], value[i], expiry[i], view[i], found, period[i], consumed[i], late[i] =
          apply_beside_holds(limit, state, RESERVE, 1, owner, number(hold_at), hold_ttl)
        room = admitted[i] and 1 or 0
        is_made[i] = admitted[i] and found == 0
        if found == 1 then
          is_repeat = true
        elseif found and found > 1 and role ~= 1 then
          refusal = found == 2 and 'e' or refusal or 'k'
        end
      elseif units == 1 then
        admitted[i], value[i], expiry[i], view[i], period[i], consumed[i], late[i] = apply(limit, state, TAKE, 1)
        is_made[i], room = false, admitted[i] and 1 or 0
      else
        room = apply(limit, state, ROOM, units)
        admitted[i] = room
      end
      if admitted[i] == nil then
        if role ~= 1 then unreadable = unreadable or i end
      elseif role == 0 then
        if room < granted then granted = room end
      elseif role > 1 then
        best = best or {}
        if room >= (best[role] or 0) then best[role] = room end
      end
    end
    if is_repeat then -- what has no owner was taken when the reservation was made
      granted, best = 1, nil
      for i = 1, checks do
        local check = first + width * (i - 1)
        local limit, is_take = limit_of[plans[check]], plans[check + 7] == 32768
        if is_take and limit[1] ~= concurrency and limit[1] ~= penalty and admitted[i] ~= nil then
          admitted[i], value[i] = true, nil
        end
        local room, role = admitted[i] and 1 or 0, limit[2]
        if role == 0 then
          if room < granted then granted = room end
        elseif role > 1 then
          best = best or {}
          if room >= (best[role] or 0) then best[role] = room end
        end
      end
    end
    if best then
      for _, room in pairs(best) do granted = math.min(granted, room) end
    end

    local takes = math.max(granted, 1)
    if units ~= 1 then
      for i = 1, checks do
        local limit = limit_of[plans[first + width * (i - 1)]]
        if admitted[i] ~= nil then
          admitted[i], value[i], expiry[i], view[i], period[i], consumed[i], late[i] = apply(limit, stored[i], TAKE, takes)
          is_made[i] = false
          if admitted[i] == nil and limit[2] ~= 1 then unreadable = unreadable or i end
        end
      end
    end

    local struck
    if kind >= 4 and consume and not unreadable and not refusal and not not_decided then
      struck = {}
      for i = 1, checks do
        local struck_check = plans[first + width * (i - 1) + 3]
        if struck_check > 0 and admitted[i] == false and not shared[i] and admitted[struck_check] then
          struck[struck_check] = true
        end
      end
      for i in pairs(struck) do
        local _
        _, value[i], expiry[i] = apply(limit_of[plans[first + width * (i - 1)]], stored[i], STRIKE, 1)
      end
    end

    last = last + 1
    if not_decided then
      reply[last] = not_decided
    elseif unreadable then
      reply[last], checks = format(';!%d', unreadable), 0
    elseif refusal then
      reply[last], checks = ';' .. refusal, 0
    else
      reply[last] = units ~= 1 and format(';g%d', granted) or is_repeat and ';r' or ';'
    end
    for i = 1, checks do
      local limit, k, admits, changed = limit_of[plans[first + width * (i - 1)]], key[i], admitted[i], value[i]
      local letter, state = admits and 'a' or 'A', view[i] or stored[i] or ''
      if admits == nil then
        letter, state, changed = 'U', '', nil
      else
        local counts_alone = count_each and limit[2] ~= 1 and limit[1] ~= concurrency -- a denied request holds no slot
        if struck and struck[i] then
          letter = 'p'
        elseif admits then
          if granted == 0 and not counts_alone then changed = nil end
        elseif counts_alone and consume then
          local _, charged, ends, _, charged_period, charged_units, charged_late =
            apply(limit, stored[i], limit[1] == quota and FILL or CHARGE, takes)
          if charged then
            is_made[i], period[i], consumed[i], late[i] = false, charged_period, charged_units, charged_late
            _, _, _, state = apply(limit, charged, TAKE, takes)
            state, changed, expiry[i] = state or charged, charged, ends
          end
        end
        if FULL and is_new[k] then
          if shared[i] then letter = admits and 'o' or 'O' else letter = admits and 'n' or 'N' end
        elseif shared[i] then
          letter = admits and 's' or 'S'
        end
      end
      if changed and consume then
        states[k], expiries[k] = changed, expiry[i]
        if not shared[i] and expiry[i] - now > limit[3] then expiries[k] = now + limit[3] end
        local numbers = has_ledger and ledger + width * (i - 1)
        if numbers and plans[numbers] > 0 and period[i] then
          if is_made[i] then
            append_entry(numbers, limit, k, 2, period[i], 0, 0, number(numbers - 4), owner, now + hold_ttl)
          elseif consumed[i] ~= 0 or late[i] ~= 0 then
            append_entry(numbers, limit, k, 1, period[i], consumed[i], late[i], 0, 0, 0)
          end
        end
      end
      reply[last + 1] = letter
      reply[last + 2] = state
      last = last + 2
      if ttl[i] then
        last = last + 1
        reply[last] = format('m%d', ttl[i])
      end
    end
  end
end

for k = 1, values do
  if counters[k] then settle(k) end
  if expiries[k] and not (FULL and is_new[k]) then
    call('PSETEX', keys[k], format('%d', (expiries[k] - now) / 1000 + margin), states[k])
  end
end
for i = 1, #entries, 2 do
  local k = entries[i]
  call('XADD', keys[k], '*', 'e', entries[i + 1])
end
return table.concat(reply, '', 1, last)
