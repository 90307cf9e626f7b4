-- Twin of quota.rs. The value: the units used, followed by the index of the period in eight digits; then, unless it and the next two
-- are 0, a comma and the units used in the period before; then, unless both are 0, the debt and the debt that was carried over. For fewer
-- than 92,233,720,368 units in one period, and none in the one before, that is an integer which Redis keeps in eight bytes. Rust
-- knows the calendar: `numbers` is the index of a period times 16384 plus the hours of the longest period, `start` and `ends` are its
-- first instant and that of the next one, `before` and `past` those of its neighbours. At any other time the periods are stale, which
-- is the second result. Three more results with a changed value say how it counts in a ledger: the index of the period, the units
-- that were consumed in it, and in the period before; negative if given back.
local function quota(state, now, op, units, cost, position, hard, numbers, before, start, ends, past)
  if now < before or now >= past then return nil, true end
  local longest, earlier, later = numbers % 16384, before, past
  local index, used, debt, previous, carried, rebased = (numbers - longest) / 16384, 0, 0, 0, 0, false
  longest = longest * 3600000000
  if now < start then
    index, start, ends, earlier, later = index - 1, before, start, false, ends
  elseif now >= ends then
    index, start, ends, earlier, later = index + 1, ends, past, start, past + longest -- or sooner
  end
  local began, max = start, math.min(hard * ((MAX_WINDOW - MAX_WINDOW % longest) / longest), MAX_AMOUNT)
  if state then
    local comma = string.find(state, ',', 1, true)
    local digits = comma and string.sub(state, 1, comma - 1) or state
    if #digits < 9 or string.find(digits, '%D') then return nil end
    local state_index = tonumber(string.sub(digits, -8))
    used = tonumber(string.sub(digits, 1, -9))
    if comma then
      local a, b, c = string.match(state, '^(%d+),(%d+),(%d+)$', comma + 1)
      a = a or string.match(state, '^%d+$', comma + 1)
      if not a then return nil end
      previous, debt, carried = tonumber(a), tonumber(b or 0), tonumber(c or 0)
      if previous >= TOO_LARGE or debt >= TOO_LARGE or carried >= TOO_LARGE then return nil end
    end
    if used >= TOO_LARGE then return nil end
    if state_index > index and (used > 0 or debt > 0 or previous > 0 or carried > 0) then
      if state_index <= index + 2 then
        index, start, earlier = state_index, state_index == index + 1 and ends or later, math.huge
      else
        previous, carried, rebased = 0, 0, true
      end
    end
    used, previous = math.min(used, MAX_AMOUNT), math.min(previous, MAX_AMOUNT)
    debt, carried = math.min(debt, max), math.min(carried, max)
    if debt > 0 and used < hard then
      local paid = math.min(debt, hard - used)
      used, debt = used + paid, debt - paid
    end
    if state_index < index then
      local passed = index - state_index
      if passed > 1 then
        debt = math.max(debt - (passed - 2) * hard, 0)
        used = math.min(debt, hard)
        debt = debt - used
      end
      previous, carried = used, debt
      used = math.min(debt, hard)
      debt = debt - used
    end
  end
  local admitted, old_used, old_debt, old_previous, old_carried = true, used, debt, previous, carried
  if op == KEEP then -- nothing changes
  elseif op == ROOM then
    if debt > 0 then return 0 end
    if cost == 0 then return units end
    local left = math.max(hard - used, 0)
    return math.min(units, (left - left % cost) / cost)
  elseif op == TAKE then
    cost = cost * units
    if debt == 0 and cost == 0 then return true end
    if debt == 0 and used + cost <= hard then
      used = used + cost
    elseif rebased then
      admitted = false
    elseif debt == 0 then
      return false
    end
  elseif op == CHARGE or op == FILL then
    cost = cost * units
    if op == FILL then
      cost = math.min(cost, math.max(hard - used, 0))
    elseif position == index - 1 then
      local fitting = math.min(cost, math.max(hard - previous, 0))
      previous, cost = previous + fitting, cost - fitting
      carried = math.min(carried + cost, max)
    end
    local fitting = math.min(cost, math.max(hard - used, 0))
    used, debt = used + fitting, math.min(debt + cost - fitting, max)
  elseif op == REFUND then
    if position == index - 1 then
      local back = math.min(cost, carried)
      carried, previous, cost = carried - back, math.max(previous - (cost - back), 0), back
    elseif position ~= index then
      return true
    end
    local of_debt = math.min(cost, debt)
    used, debt = math.max(used - (cost - of_debt), 0), debt - of_debt
  else
    return false
  end
  local periods = used == 0 and debt == 0 and 1 or 2
  if debt > 0 then periods = periods + (debt + hard - 1 - (debt + hard - 1) % hard) / hard end
  if op == KEEP then
    local is_empty = used == 0 and debt == 0 and previous == 0 and carried == 0
    return true, nil, is_empty and now or start + periods * longest, began, earlier, index - 1
  end
  if op == TAKE and debt > 0 and not rebased then return false, state, start + periods * longest end
  if admitted and used == old_used and debt == old_debt and previous == old_previous and carried == old_carried then
    return true
  end
  local value = string.format('%d%08d', used, index)
  if debt > 0 or carried > 0 then
    value = string.format('%s,%d,%d,%d', value, previous, debt, carried)
  elseif previous > 0 then
    value = string.format('%s,%d', value, previous)
  end
  return admitted, value, start + periods * longest, nil, index,
    used + debt - carried - (old_used + old_debt - old_carried), previous + carried - (old_previous + old_carried)
end
