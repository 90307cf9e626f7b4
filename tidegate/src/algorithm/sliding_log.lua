-- Twin of sliding_log.rs. The value: two bytes with the sum of the costs, then nine bytes an entry, oldest first: seven of
-- microseconds, two of cost, all with the high byte first. The view: sum, newest and blocker, as in the Rust Summary.
local function sliding_log(state, now, op, units, cost, position, limit, window)
  local used, newest, first, rebased, size = 0, 0, 3, false, state and #state or 2
  if state then
    if size < 2 or (size - 2) % 9 ~= 0 then return nil end
    used = struct.unpack('>I2', state)
    if size > 2 then newest = struct.unpack('>I7', state, size - 8) end
    if newest >= TOO_LARGE or (used > 0) ~= (size > 2) then return nil end
    if newest > now then
      if newest - now <= MARGIN then now = newest else rebased = true end
    end
    while first < size do
      local at, units_then = struct.unpack('>I7I2', state, first)
      if at + window > now then break end
      used, first = used - units_then, first + 9
    end
    if used < 0 or (used > 0) ~= (first < size) then return nil end
  end
  if op == KEEP then return true, nil, used > 0 and newest + window or now end
  local left = limit > used and limit - used or 0
  if op == ROOM then
    if cost == 0 then return units end
    return math.min(units, (left - left % cost) / cost)
  end

  local admitted, counted, removed = true, 0, 0
  local view
  if op == TAKE then
    cost = cost * units
    local blocker = 0
    if cost <= left then
      counted = cost
    else
      admitted = false
      local excess, offset = used + cost - limit, first
      while cost <= limit and excess > 0 do
        if offset >= size then return nil end
        local at, units_then = struct.unpack('>I7I2', state, offset)
        blocker, excess, offset = at, excess - units_then, offset + 9
      end
      if blocker > now then blocker = now end
    end
    if state then view = string.format('%d,%d,%d', used, first < size and math.min(newest, now) or 0, blocker) end
    if counted == 0 and (admitted or not rebased) then return admitted, nil, nil, view end
  elseif op == CHARGE then
    counted = math.min(cost * units, left)
    if counted == 0 then return true end
  else
    local low, high = (first - 3) / 9, (size - 2) / 9 - 1
    local found
    while low <= high and not rebased do
      local middle = math.floor((low + high) / 2)
      local at, units_then = struct.unpack('>I7I2', state, middle * 9 + 3)
      if at == position then
        found, removed = middle * 9 + 3, math.min(cost, units_then)
        break
      elseif at < position then low = middle + 1 else high = middle - 1 end
    end
    if removed == 0 then return true end
    local at, units_then = struct.unpack('>I7I2', state, found)
    local kept = units_then > removed and struct.pack('>I7I2', at, units_then - removed) or ''
    state = string.sub(state, 1, found - 1) .. kept .. string.sub(state, found + 9)
    size = #state
  end

  local tail = size + 1 -- the end of the entries that are kept
  if rebased then
    local ahead = 0
    while tail > first do
      local at, units_then = struct.unpack('>I7I2', state, tail - 9)
      if at < now then break end
      ahead, tail = ahead + units_then, tail - 9
    end
    counted, used = counted + ahead, used - ahead
  elseif counted > 0 and size > 2 and newest == now then
    local _, units_then = struct.unpack('>I7I2', state, size - 8)
    counted, used, tail = counted + units_then, used - units_then, size - 8
  end
  used = used + counted - removed
  local entries = state and string.sub(state, first, tail - 1) or ''
  if counted > 0 then
    entries = entries .. struct.pack('>I7I2', now, counted)
    newest = now
  elseif #entries > 0 then
    newest = struct.unpack('>I7', entries, #entries - 8)
  end
  return admitted, struct.pack('>I2', used) .. entries, used > 0 and newest + window or now, view
end
