-- Purpose  Decide plans one after the other: apply every check of a plan to its state, combine the results, then change the
--          states. Every key is read once and, if its state changed, written once after the last plan. It must be one script: a
--          plan is all or nothing, and no other request may run in between. With FULL, for a server without memory, only keys
--          that exist are written.
-- KEYS[k]  the keys of the plans, each once
-- ARGV[1]  packed 16-bit integers, for each plan one of
--          0; limit and key of its only check
--          1; units; number of checks; for each check: limit; key; overflow bucket that decides if the key does not exist, or 0
--          2; 0 for a peek, else 1; 1 if each check counts on its own, else 0; units in four numbers, the lowest first; number of
--          checks; checks as above
-- ARGV[2]  for each limit eleven packed doubles: algorithm; role of the check (0 enforced, 1 shadow, 2 and up an any-of group);
--          maximum TTL of the state in microseconds, or infinite; the arguments of the limit after `units`, padded
-- ARGV[3]  tests only: now, in microseconds
-- Reply    one string: now as a packed double; for each plan a semicolon and one of
--          "!" and the number of an enforced check whose state is unreadable: the plan changed nothing
--          unless units is 1, "g" and the units granted, then for each check a letter and the state that it was decided on, then for
--          a state with a maximum TTL "m" and the milliseconds that it had left. Letters of checks that admit are small, of others
--          capital: a own state, s overflow bucket; n and o likewise, but nothing was written, since the key does not exist and the
--          server is full; U a shadow check whose state is unreadable
local plans = { struct.unpack('<' .. string.rep('H', #ARGV[1] / 2), ARGV[1]) }
local limit_of = {}
for at = 1, #ARGV[2], 88 do limit_of[#limit_of + 1] = { struct.unpack('<ddddddddddd', ARGV[2], at) } end
local states, expiries, ttls, exists = {}, {}, {}, {}

local try = redis.pcall
local function load(k)
  local state = try('GET', KEYS[k])
  if type(state) == 'table' then
    -- An error. A value of another type is unreadable like '?'; any other error ends the script, before its first write.
    if string.sub(state.err, 1, 9) ~= 'WRONGTYPE' then call('GET', KEYS[k]) end
    state = '?'
  end
  states[k] = state
  if FULL then exists[k] = state ~= false end
  return state
end

local function apply(limit, state, op, units)
  return limits[limit[1]](state, now, op, units, limit[4], limit[5], limit[6], limit[7], limit[8], limit[9], limit[10], limit[11])
end

local function ttl_of(k)
  if expiries[k] then
    local ttl = (expiries[k] - now) / 1000 + margin
    return ttl - ttl % 1
  end
  ttls[k] = ttls[k] or call('PTTL', KEYS[k])
  return ttls[k]
end

local reply, last, at, past_plans = { struct.pack('<d', now) }, 1, 1, #plans
local key, stored, shared, ttl = {}, {}, {}, {}
local admitted, value, expiry, view = {}, {}, {}, {}
while at < past_plans do
  local kind = plans[at]
  if kind == 0 then
    local limit, k = limit_of[plans[at + 1]], plans[at + 2]
    at = at + 3
    local state = states[k]
    if state == nil then state = load(k) end
    local admits, changed, ends, seen = limits[limit[1]](state, now, TAKE, 1,
      limit[4], limit[5], limit[6], limit[7], limit[8], limit[9], limit[10], limit[11])
    if admits == nil then
      last = last + 1
      reply[last] = ';!1'
    else
      if changed then states[k], expiries[k] = changed, ends end
      if FULL and not exists[k] then
        reply[last + 1] = admits and ';n' or ';N'
      else
        reply[last + 1] = admits and ';a' or ';A'
      end
      last = last + 2
      reply[last] = seen or state or ''
    end
  else
    local units, consume, count_each, checks = plans[at + 1], true, false, plans[at + 2]
    at = at + 3
    if kind == 2 then
      consume, count_each = units == 1, checks == 1
      units = plans[at] + plans[at + 1] * 65536 + plans[at + 2] * 4294967296 + plans[at + 3] * 281474976710656
      checks, at = plans[at + 4], at + 5
    end
    local first, granted, best, unreadable = at, units, nil, nil
    for i = 1, checks do
      local limit, k, overflow = limit_of[plans[at]], plans[at + 1], plans[at + 2]
      at = at + 3
      local role, state = limit[2], states[k]
      if state == nil then state = load(k) end
      shared[i], ttl[i] = false, nil
      if state then
        if consume and limit[3] < math.huge then ttl[i] = math.max(ttl_of(k) - margin + MARGIN / 1000, 0) end
      elseif overflow > 0 then
        k, shared[i], state = overflow, true, states[overflow]
        if state == nil then state = load(k) end
      end
      key[i], stored[i] = k, state
      local room
      if units == 1 then
        admitted[i], value[i], expiry[i], view[i] = apply(limit, state, TAKE, 1)
        room = admitted[i] and 1 or 0
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
    if best then
      for _, room in pairs(best) do granted = math.min(granted, room) end
    end

    local taken = math.max(granted, 1)
    if units ~= 1 then
      for i = 1, checks do
        local limit = limit_of[plans[first + 3 * i - 3]]
        if admitted[i] ~= nil then
          admitted[i], value[i], expiry[i], view[i] = apply(limit, stored[i], TAKE, taken)
          if admitted[i] == nil and limit[2] ~= 1 then unreadable = unreadable or i end
        end
      end
    end

    last = last + 1
    if unreadable then
      reply[last], checks = string.format(';!%d', unreadable), 0
    elseif units == 1 then
      reply[last] = ';'
    else
      reply[last] = string.format(';g%d', granted)
    end
    for i = 1, checks do
      local limit, k, admits, changed = limit_of[plans[first + 3 * i - 3]], key[i], admitted[i], value[i]
      local letter, state = admits and 'a' or 'A', view[i] or stored[i] or ''
      if admits == nil then
        letter, state, changed = 'U', '', nil
      else
        local counts_alone = count_each and limit[2] ~= 1
        if admits then
          if granted == 0 and not counts_alone then changed = nil end
        elseif counts_alone and consume then
          local _, charged, ends = apply(limit, stored[i], CHARGE, taken)
          if charged then
            _, _, _, state = apply(limit, charged, TAKE, taken)
            state, changed, expiry[i] = state or charged, charged, ends
          end
        end
        if shared[i] then letter = admits and 's' or 'S' end
        if FULL and not exists[k] then
          if shared[i] then letter = admits and 'o' or 'O' else letter = admits and 'n' or 'N' end
        end
      end
      if changed and consume then
        states[k], expiries[k] = changed, expiry[i]
        if not shared[i] and expiry[i] - now > limit[3] then expiries[k] = now + limit[3] end
      end
      reply[last + 1], reply[last + 2] = letter, state
      last = last + 2
      if ttl[i] then
        last = last + 1
        reply[last] = string.format('m%d', ttl[i])
      end
    end
  end
end

for k = 1, #KEYS do
  if expiries[k] and (not FULL or exists[k]) then
    call('PSETEX', KEYS[k], string.format('%d', (expiries[k] - now) / 1000 + margin), states[k])
  end
end
return table.concat(reply)
