-- Twin of fixed_window.rs. The value: the count, followed by the index of the window in ten digits (sixteen for windows
-- below a second). For counts below 922,337,203 in ten digits that is an integer which Redis keeps in eight bytes.
local function fixed_window(state, now, op, units, cost, place, limit, window)
  local width, layout = -10, '%d%010d'
  if window < 1000000 then width, layout = -16, '%d%016d' end
  local index, count, rebased = (now - now % window) / window, 0, false
  if state then
    if #state <= -width or string.find(state, '%D') then return nil end
    local state_index, state_count = tonumber(string.sub(state, width)), tonumber(string.sub(state, 1, width - 1))
    if state_index * window >= TOO_LARGE or state_count >= TOO_LARGE then return nil end
    if state_index >= index then count = state_count end
    if state_index > index and count > 0 then
      if state_index * window - now > MARGIN then rebased = true else index = state_index end
    end
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
    if index ~= place or cost == 0 or count == 0 then return true end
    count = cost < count and count - cost or 0
  end
  return admitted, string.format(layout, count, index), (index + 1) * window
end
