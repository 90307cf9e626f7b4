-- Twin of fixed_window.rs. The value: the count, followed by the index of the window in ten digits (sixteen for windows
-- below a second). For counts below 922,337,203 in ten digits that is an integer which Redis keeps in eight bytes.
-- `window` is in microseconds, or the negative number of calendar months; calendar.rs has the same arithmetic.
local function fixed_window(state, now, op, units, cost, position, limit, window)
  local width, layout, start_of = -10, '%d%010d', nil
  local index, count, rebased = (now - now % window) / window, 0, false
  if window < 0 then
    local months = -window
    start_of = function(number)
      local month = number * months + 23638
      local year = (month - month % 12) / 12
      local leap_days = (year - year % 4) / 4 - (year - year % 100) / 100 + (year - year % 400) / 400
      local fifths = 153 * (month % 12) + 2
      return (365 * year + leap_days + (fifths - fifths % 5) / 5 - 719468) * 86400000000
    end
    local shares = ((now - now % 86400000000) / 86400000000 + 3) * 4800
    index = (shares - shares % (146097 * months)) / (146097 * months)
    if start_of(index) > now then index = index - 1 end
  elseif window < 1000000 then
    width, layout = -16, '%d%016d'
  end
  if state then
    if #state <= -width or string.find(state, '%D') then return nil end
    local state_index, state_count = tonumber(string.sub(state, width)), tonumber(string.sub(state, 1, width - 1))
    local state_start = start_of and start_of(state_index) or state_index * window
    if state_start >= TOO_LARGE or state_count >= TOO_LARGE then return nil end
    if state_index >= index then count = state_count end
    if state_index > index and count > 0 then
      if state_start - now > MARGIN then rebased = true else index = state_index end
    end
  end
  if op == KEEP then
    local start = start_of and start_of(index) or index * window
    local ends = start_of and start_of(index + 1) or start + window
    return true, nil, count > 0 and ends or now, start
  end
  local left = limit > count and limit - count or 0
  local admitted = true
  if op == ROOM then
    if cost == 0 then return units end
    return math.min(units, (left - left % cost) / cost)
  elseif op == TAKE then
    cost = cost * units
    if cost == 0 then return true end
    if cost <= left then
      count = count + cost
    elseif rebased then
      admitted = false
    else
      return false
    end
  elseif op == CHARGE then
    cost = math.min(cost * units, left)
    if cost == 0 then return true end
    count = count + cost
  else
    if index ~= position or cost == 0 or count == 0 then return true end
    count = cost < count and count - cost or 0
  end
  return admitted, string.format(layout, count, index),
    start_of and start_of(index + 1) or (index + 1) * window
end
