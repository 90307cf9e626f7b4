-- Twin of quota.rs. The value: the units used, followed by the index of the period in eight digits; then, unless it is 0, a comma
-- and the units used in the period before. For fewer than 92,233,720,368 units in one period that is an integer which Redis keeps in
-- eight bytes. Rust knows the calendar: `numbers` is the index of a period times 16384 plus the hours of the longest period,
-- `start` and `ends` are its first instant and that of the next one, `before` and `past` those of its neighbours. At any
-- other time the periods are stale, which is the second result.
local function quota(state, now, op, units, cost, position, hard, numbers, before, start, ends, past)
  if now < before or now >= past then return nil, true end
  local longest, earlier = numbers % 16384, before
  local index, used, previous, rebased = (numbers - longest) / 16384, 0, 0, false
  longest = longest * 3600000000
  if now < start then
    index, start, ends, earlier = index - 1, before, start, false
  elseif now >= ends then
    index, start, ends, earlier = index + 1, ends, past, start
  end
  local max = math.min(hard * ((MAX_WINDOW - MAX_WINDOW % longest) / longest + 1), MAX_AMOUNT)
  if state then
    local comma = string.find(state, ',', 1, true)
    local digits = comma and string.sub(state, 1, comma - 1) or state
    if #digits < 9 or string.find(digits, '%D') then return nil end
    local state_index = tonumber(string.sub(digits, -8))
    used = tonumber(string.sub(digits, 1, -9))
    if comma then
      digits = string.sub(state, comma + 1)
      if digits == '' or string.find(digits, '%D') then return nil end
      previous = tonumber(digits)
    end
    if used >= TOO_LARGE or previous >= TOO_LARGE then return nil end
    used, previous = math.min(used, max), math.min(previous, max)
    if state_index < index then
      local passed = (index - state_index) * hard
      previous, used = math.max(used - (passed - hard), 0), math.max(used - passed, 0)
    elseif state_index > index and (used > 0 or previous > 0) then
      if state_index == index + 1 and ends - now <= MARGIN then
        index, start, earlier = state_index, ends, start
      else
        previous, rebased = 0, true
      end
    end
  end
  local admitted = true
  if op == KEEP then
    local periods = 1
    if hard > 0 then periods = (used + hard - 1 - (used + hard - 1) % hard) / hard + 1 end
    return true, nil, (used > 0 or previous > 0) and start + periods * longest or now, start, earlier, index - 1
  elseif op == ROOM then
    if used > hard then return 0 end
    if cost == 0 then return units end
    return math.min(units, (hard - used - (hard - used) % cost) / cost)
  elseif op == TAKE then
    cost = cost * units
    if used + cost <= hard then
      if cost == 0 then return true end
      used = used + cost
    elseif rebased then
      admitted = false
    else
      return false
    end
  elseif op == CHARGE or op == FILL then
    cost = cost * units
    if op == FILL then cost = math.min(cost, math.max(hard - used, 0)) end
    local old_used, old_previous = used, previous
    if position == index - 1 and op == CHARGE then
      previous = math.min(previous + cost, max)
      cost = math.max(previous - hard, 0) - math.max(old_previous - hard, 0)
    end
    used = math.min(used + cost, max)
    if used == old_used and previous == old_previous then return true end
  elseif op == REFUND then
    if cost == 0 then return true end
    if position == index then
      if used == 0 then return true end
      used = math.max(used - cost, 0)
    elseif position == index - 1 then
      if previous == 0 then return true end
      local carried = math.max(previous - hard, 0)
      previous = math.max(previous - cost, 0)
      used = math.max(used - (carried - math.max(previous - hard, 0)), 0)
    else
      return true
    end
  else
    return false
  end
  local value = string.format('%d%08d', used, index)
  if previous > 0 then value = string.format('%s,%d', value, previous) end
  local periods = 1
  if hard > 0 then periods = (used + hard - 1 - (used + hard - 1) % hard) / hard + 1 end
  return admitted, value, start + periods * longest
end
