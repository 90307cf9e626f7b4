-- Twin of sliding_window.rs. The value: the index of the newest slice and the counts from it backwards, in decimal,
-- separated by commas, without the zeros at the end.
local function sliding_window(state, now, op, units, cost, position, limit, slice, slices)
  local index, elapsed, rebased = (now - now % slice) / slice, now % slice, false
  local counts = {}
  if state then
    if not string.find(state, '^%d[%d,]*%d$') and not string.find(state, '^%d$') then return nil end
    if string.find(state, ',,', 1, true) then return nil end
    local found = {}
    for digits in string.gmatch(state, '%d+') do
      found[#found + 1] = tonumber(digits)
      if found[#found] >= TOO_LARGE then return nil end
    end
    if found[1] * slice >= TOO_LARGE or #found > slices + 2 then return nil end
    local state_index = found[2] and found[1] or 0 -- a state without counts is equivalent to none
    if state_index <= index then
      local passed = index - state_index
      if passed <= slices then
        for age = 0, passed - 1 do counts[age] = 0 end
        for age = passed, slices do counts[age] = found[age - passed + 2] end
      end
    elseif state_index * slice - now <= MARGIN then
      index, elapsed = state_index, 0
      for age = 0, slices do counts[age] = found[age + 2] end
    else
      rebased = true
      local ahead = state_index - index
      counts[0] = 0
      for age = 0, slices do
        local count = found[age + 2] or 0
        if age <= ahead then counts[0] = counts[0] + count else counts[age - ahead] = count end
      end
    end
  end
  if op == KEEP then
    local age = 0
    while age <= slices and (counts[age] or 0) == 0 do age = age + 1 end
    return true, nil, age <= slices and (index - age + slices + 1) * slice or now
  end
  local estimate, oldest = 0, counts[slices] or 0
  for age = 0, slices - 1 do estimate = estimate + (counts[age] or 0) end
  if oldest > 0 then
    local weight = slice - elapsed
    if oldest * weight < TOO_LARGE then
      local product = oldest * weight
      local rest = product % slice
      estimate = estimate + (product - rest) / slice + (rest > 0 and 1 or 0)
    else
      -- oldest * weight / slice by long multiplication, as the product passes 2^53.
      local quotient, rest, bit = 0, 0, 4503599627370496
      while bit >= 1 do
        quotient, rest = quotient + quotient, rest + rest
        if rest >= slice then quotient, rest = quotient + 1, rest - slice end
        if oldest >= bit then
          oldest, rest = oldest - bit, rest + weight
          if rest >= slice then quotient, rest = quotient + 1, rest - slice end
        end
        bit = bit / 2
      end
      estimate = estimate + quotient + (rest > 0 and 1 or 0)
    end
  end
  local left = limit > estimate and limit - estimate or 0
  local admitted = true
  if op == ROOM then
    if cost == 0 then return units end
    return math.min(units, (left - left % cost) / cost)
  elseif op == TAKE then
    cost = cost * units
    if cost == 0 then return true end
    if cost <= left then
      counts[0] = (counts[0] or 0) + cost
    elseif rebased then
      admitted = false
    else
      return false
    end
  elseif op == CHARGE then
    cost = math.min(cost * units, left)
    if cost == 0 then return true end
    counts[0] = (counts[0] or 0) + cost
  else
    local age = index - position
    local count = counts[age] or 0
    if age < 0 or age > slices or count == 0 or cost == 0 then return true end
    counts[age] = cost < count and count - cost or 0
  end
  local last, newest = -1, nil
  for age = 0, slices do
    if (counts[age] or 0) > 0 then
      last = age
      newest = newest or age
    end
  end
  local parts = { string.format('%d', index) }
  for age = 0, last do parts[age + 2] = string.format('%d', counts[age] or 0) end
  return admitted, table.concat(parts, ','), newest and (index - newest + slices + 1) * slice or now
end
