-- The second part of decide_batch.lua: decides the plans one after the other, then writes the states and appends the entries.
--
-- There is one loop for each layout, and functions that not every batch needs are made only for those that do. As functions, the loops
-- took up to 17 % more of the time of a call with one plan; functions for the steps of a check took 15 to 40 % more of that of a batch.
-- (Figures are instructions of redis-server 7.0.15 for the same calls, 2026-11-20.)

-- The pieces of the reply, and the entries to append to streams after the last plan.
local reply, last, entries = { struct.pack('<d', now) }, 1, {}

-- By check of a plan: its limit, key and state, the last two those of its overflow bucket if that decides; whether it does; the
-- milliseconds that a state with a maximum TTL has left; the units that the state has room for; the counter, if takes are counted.
local limit_at, key, stored, is_shared, ttl, room, counter_of
-- The results of the limit; whether a hold was made; whether a penalty was struck.
local admitted, value, expiry, view, period, consumed, late, is_made, is_struck
local taken_texts, ttl_of, ledger_refusal, add_entry
room, value, expiry = {}, {}, {}
if plans[2] > 0 then counter_of, taken_texts = {}, {} end
if plans[3] > 0 then
  limit_at, key, stored, is_shared, ttl = {}, {}, {}, {}, {}
  admitted, view, period, consumed, late, is_made, is_struck = {}, {}, {}, {}, {}, {}, {}
  local ttls = {}

  -- The milliseconds that the state of a key with a maximum TTL has left.
  function ttl_of(k)
    local left
    if expiries[k] then
      left = (expiries[k] - now) / 1000 + margin
      left = left - left % 1
    else
      ttls[k] = ttls[k] or call('PTTL', keys[k])
      left = ttls[k]
    end
    return math.max(left - margin + MARGIN / 1000, 0)
  end
end
if plans[1] > 0 then
  -- By stream: the number of its entries with those to append.
  local lengths = {}

  -- The result of a plan that is not decided because of the ledgers of its checks, or nil.
  function ledger_refusal(first, width, checks, consumes)
    local found, is_same, is_full = {}, true, false
    for i = 1, checks do
      local row = first + width * (i - 1)
      local k, marker, generation = plans[row + 5], plans[row + 6], numbers[plans[row + 7]]
      if k > 0 then
        found[#found + 1] = states[marker] and string.match(states[marker], '^%d+$') or '0'
        -- An instance that knows no generation sends 0.
        if found[#found] == '0' or found[#found] ~= format('%d', generation) then is_same = false end
        if consumes then
          lengths[k] = lengths[k] or redis.pcall('XLEN', keys[k])
          if type(lengths[k]) == 'table' then return format(';!%d', i) end
          if FULL or lengths[k] >= MAX_OUTBOX_ENTRIES then is_full = true end
        end
      end
    end
    return not is_same and ';?' .. table.concat(found, ',') or is_full and ';%' or nil
  end

  -- Adds an entry for a changed state to those to append, if its check has a ledger. Returns it.
  function add_entry(i, row, owner, duration)
    local k, stream, generation, hard, fields = key[i], plans[row + 5], numbers[plans[row + 7]], limit_at[i][6], nil
    if stream == 0 or not period[i] then return nil end
    if is_made[i] then
      fields = ledger_entry(keys[k], 2, period[i], 0, 0, numbers[plans[row + 4]], owner, now + duration, hard, generation)
    elseif consumed[i] ~= 0 or late[i] ~= 0 then
      fields = ledger_entry(keys[k], 1, period[i], consumed[i], late[i], 0, 0, 0, hard, generation)
    else
      return nil
    end
    lengths[stream] = lengths[stream] + 1
    entries[#entries + 1] = { stream = stream, fields = fields }
    return entries[#entries]
  end
end

local at, past_plans = 4, #plans
while at <= past_plans do
  -- Layout 0: a plan of one check. In layout 1, these plans took 12 to 13 % more.
  while plans[at] == 0 do
    local limit, k = limit_of[plans[at + 1]], plans[at + 2]
    local state = states[k]
    if state == nil then state = settle(k) end
    local admitted, value, expiry, view = limit[1](state, now, TAKE, 1,
      limit[4], limit[5], limit[6], limit[7], limit[8], limit[9], limit[10], limit[11])
    if admitted == nil then admitted, value, expiry, view = apply_beside_holds(limit, state, TAKE, 1) end
    if admitted == nil then
      last = last + 1
      reply[last] = ';!1'
    else
      if value then states[k], expiries[k] = value, expiry end
      if FULL and is_new[k] then
        reply[last + 1] = admitted and ';n' or ';N'
      else
        reply[last + 1] = admitted and ';a' or ';A'
      end
      last = last + 2
      reply[last] = view or state or ''
    end
    at = at + 3
  end

  -- Layout 1: enforced checks. In layout 2, these plans took 14 to 20 % more.
  while plans[at] == 1 do
    local units, checks, first, unreadable = plans[at + 1], plans[at + 2], at + 3, nil
    local granted, header = units, last + 1
    reply[header] = ';' -- in order: a table with gaps is slow
    at, last = first, header
    for i = 1, checks do
      local limit, k, counter, left = limit_of[plans[at]], plans[at + 1], nil, nil
      if plans[at + 2] == 1 then counter = counters[k] or count(limit, k) end
      counter_of[i] = counter
      if counter then
        local taken = counter.taken
        left, last = counter.room - taken, last + 1
        reply[last] = left > 0 and counter.admits or counter.denies
        if taken > 0 then
          taken_texts[taken], last = taken_texts[taken] or format('t%d', taken), last + 1
          reply[last] = taken_texts[taken]
        end
      else
        local state, view = states[k], nil
        if state == nil then state = settle(k) end
        if units == 1 then
          local admitted
          admitted, value[i], expiry[i], view = limit[1](state, now, TAKE, 1,
            limit[4], limit[5], limit[6], limit[7], limit[8], limit[9], limit[10], limit[11])
          if admitted == nil then admitted, value[i], expiry[i], view = apply_beside_holds(limit, state, TAKE, 1) end
          if admitted == nil then unreadable = unreadable or i end
          left = admitted and 1 or 0
        else
          local _
          left, _, _, view = apply(limit, state, ROOM, units)
          if left == nil then unreadable, left = unreadable or i, 0 end
        end
        if FULL and is_new[k] then
          reply[last + 1] = left > 0 and 'n' or 'N'
        else
          reply[last + 1] = left > 0 and 'a' or 'A'
        end
        last = last + 2
        reply[last] = view or state or ''
        room[i] = left
      end
      at = at + 3
      if left < granted then granted = left end
    end
    if unreadable then
      reply[header], last, checks = format(';!%d', unreadable), header, 0
    elseif units ~= 1 then
      reply[header] = format(';g%d', granted)
    end

    for i = 1, checks do
      local counter = counter_of[i]
      if counter then
        counter.taken = counter.taken + granted
      else
        local k = plans[first + 3 * i - 2]
        if units ~= 1 then
          local _
          _, value[i], expiry[i] = apply(limit_of[plans[first + 3 * i - 3]], states[k], TAKE, granted > 0 and granted or 1)
        end
        -- A check that denies changes a state that is rebased.
        if value[i] and (granted > 0 or room[i] == 0) then states[k], expiries[k] = value[i], expiry[i] end
      end
    end
  end

  -- Layout 2: any plan. Six more layouts for its kinds of plans saved less than 3 %.
  while plans[at] == 2 do
    local mode, width, checks, units = plans[at + 1], plans[at + 2], plans[at + 3], numbers[plans[at + 4]]
    local has_penalties, has_holds, has_ledgers, consumes = width > 3, width > 4, width > 5, mode ~= PEEK
    local first, owner, duration = at + 5, nil, nil
    if has_holds then first, owner, duration = at + 7, numbers[plans[at + 5]], numbers[plans[at + 6]] end
    at = first + width * checks

    -- Each check is decided by itself.
    local refusal, unreadable, is_repeat = nil, nil, false
    if has_ledgers then
      refusal = ledger_refusal(first, width, checks, consumes)
      if refusal then checks = 0 end
    end
    for i = 1, checks do
      local row = first + width * (i - 1)
      local limit, k, overflow = limit_of[plans[row]], plans[row + 1], plans[row + 2]
      local state = states[k]
      if state == nil then state = settle(k) end
      is_shared[i], ttl[i] = false, nil
      if state then
        if consumes and limit[3] < huge then ttl[i] = ttl_of(k) end
      elseif overflow > 0 then
        k, state, is_shared[i] = overflow, states[overflow], true
        if state == nil then state = settle(k) end
      end
      limit_at[i], key[i], stored[i] = limit, k, state
      if has_holds and plans[row + 4] > 0 then
        local found -- what the owner has: 0 nothing, 1 the same hold, 2 its end, 3 another hold
        admitted[i], value[i], expiry[i], view[i], found, period[i], consumed[i], late[i] =
          holds(limit[1], limit[1] == token_bucket, state, now, RESERVE, 1, owner, numbers[plans[row + 4]], duration,
            limit[4], limit[5], limit[6], limit[7], limit[8], limit[9], limit[10], limit[11])
        room[i], is_made[i] = admitted[i] and 1 or 0, admitted[i] and found == 0
        if found == 1 then
          is_repeat = true
        elseif found and found > 1 and limit[2] ~= SHADOW then
          refusal = found == 2 and ';e' or refusal or ';k'
        end
      elseif units == 1 then
        admitted[i], value[i], expiry[i], view[i], period[i], consumed[i], late[i] = apply(limit, state, TAKE, 1)
        room[i], is_made[i] = admitted[i] and 1 or 0, false
      else
        admitted[i] = apply(limit, state, ROOM, units)
        room[i], value[i] = admitted[i] or 0, nil
      end
      if admitted[i] == nil and limit[2] ~= SHADOW then unreadable = unreadable or i end
    end

    -- What has no owner in a reservation that was made before was taken then, and is not taken again.
    if is_repeat then
      for i = 1, checks do
        local algorithm, has_owner = limit_at[i][1], plans[first + width * (i - 1) + 4] > 0
        if not has_owner and algorithm ~= concurrency and algorithm ~= penalty and admitted[i] ~= nil then
          room[i], admitted[i], value[i] = 1, true, nil
        end
      end
    end

    -- The plan is granted what all enforced checks have room for, and of each any-of group one check.
    local granted, most = units, nil
    for i = 1, checks do
      local role, left = limit_at[i][2], room[i]
      if role == ENFORCED then
        if left < granted then granted = left end
      elseif role ~= SHADOW then
        most = most or {}
        most[role] = math.max(most[role] or 0, left)
      end
    end
    if most then
      for _, left in pairs(most) do granted = math.min(granted, left) end
    end
    local takes = granted > 0 and granted or 1
    if units ~= 1 then
      for i = 1, checks do
        if admitted[i] ~= nil then
          admitted[i], value[i], expiry[i], view[i], period[i], consumed[i], late[i] = apply(limit_at[i], stored[i], TAKE, takes)
          is_made[i] = false
        end
      end
    end
    if unreadable then refusal = format(';!%d', unreadable) end
    last = last + 1
    if refusal then
      reply[last], checks = refusal, 0
    else
      reply[last] = units ~= 1 and format(';g%d', granted) or is_repeat and ';r' or ';'
    end

    -- The states are changed.
    if has_penalties then -- are struck once, if checks deny on a state of their own
      for i = 1, checks do is_struck[i] = false end
      for i = 1, consumes and checks or 0 do
        local struck = plans[first + width * (i - 1) + 3]
        if struck > 0 and admitted[i] == false and not is_shared[i] and admitted[struck] and not is_struck[struck] then
          local _
          _, value[struck], expiry[struck] = apply(limit_at[struck], stored[struck], STRIKE, 1)
          is_struck[struck] = true
        end
      end
    end
    for i = 1, checks do
      local limit, k, admits, shared = limit_at[i], key[i], admitted[i], is_shared[i]
      local struck = has_penalties and is_struck[i]
      -- A denied request holds no slot.
      local counts_alone = mode == EACH_COUNTS and limit[2] ~= SHADOW and limit[1] ~= concurrency
      if granted == 0 and admits and not counts_alone and not struck then
        value[i] = nil
      elseif admits == false and counts_alone then
        local _, charged, ends, _, of_period, in_period, before = apply(limit, stored[i], limit[1] == quota and FILL or CHARGE, takes)
        if charged then
          value[i], expiry[i], is_made[i], period[i], consumed[i], late[i] = charged, ends, false, of_period, in_period, before
          _, _, _, view[i] = apply(limit, charged, TAKE, takes)
          view[i] = view[i] or charged
        end
      end
      local entry
      if value[i] and consumes then
        local ends = expiry[i]
        if not shared and ends - now > limit[3] then ends = now + limit[3] end
        states[k], expiries[k] = value[i], ends
        if has_ledgers then entry = add_entry(i, first + width * (i - 1), owner, duration) end
      end

      local letter
      if admits == nil then
        letter = 'U'
      elseif FULL and is_new[k] then
        if shared then letter = admits and 'o' or 'O' else letter = admits and 'n' or 'N' end
      elseif shared then
        letter = admits and 's' or 'S'
      else
        letter = struck and 'p' or admits and 'a' or 'A'
      end
      reply[last + 1] = letter
      reply[last + 2] = admits ~= nil and (view[i] or stored[i]) or ''
      last = last + 2
      if ttl[i] then
        last = last + 1
        reply[last] = format('m%d', ttl[i])
      end
      if entry then entry.piece = last end
    end
  end
end

for k = 1, values do
  if states[k] == nil then settle(k) end
  if expiries[k] and not (FULL and is_new[k]) then
    call('PSETEX', keys[k], format('%d', (expiries[k] - now) / 1000 + margin), states[k])
  end
end
for i = 1, #entries do
  local k, piece = entries[i].stream, entries[i].piece
  reply[piece] = reply[piece] .. 'l' .. call('XADD', keys[k], '*', 'e', entries[i].fields)
end
return table.concat(reply, '', 1, last)
