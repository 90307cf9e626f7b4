-- The second part of decide_batch.lua: decides the plans one after the other, then writes the states and appends the entries.
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
      local entries_before = #entries
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
      if #entries > entries_before then entries[#entries + 1] = last end
    end
  end
end

for k = 1, values do
  if counters[k] then settle(k) end
  if expiries[k] and not (FULL and is_new[k]) then
    call('PSETEX', keys[k], format('%d', (expiries[k] - now) / 1000 + margin), states[k])
  end
end
for i = 1, #entries, 3 do
  local k, piece = entries[i], entries[i + 2]
  reply[piece] = reply[piece] .. 'l' .. call('XADD', keys[k], '*', 'e', entries[i + 1])
end
return table.concat(reply, '', 1, last)
