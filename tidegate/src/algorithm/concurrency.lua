-- Twin of concurrency.rs. The value: two bytes with the sum of the weights, then sixteen bytes a slot, the longest not renewed
-- first: seven of microseconds, seven of owner, two of weight, all with the high byte first. The view: sum, weight of the owner
-- and newest, as in the Rust summary.
local function concurrency(state, now, op, units, cost, owner, limit, lease)
  local used, newest, first, rebased, size = 0, 0, 3, false, state and #state or 2
  if state then
    if size < 2 or (size - 2) % 16 ~= 0 then return nil end
    used = struct.unpack('>I2', state)
    if size > 2 then newest = struct.unpack('>I7', state, size - 15) end
    if newest >= TOO_LARGE or (used > 0) ~= (size > 2) then return nil end
    if newest > now then
      if newest - now <= MARGIN then now = newest else rebased = true end
    end
    while first < size do
      local at, _, weight = struct.unpack('>I7I7I2', state, first)
      if at + lease > now then break end
      used, first = used - weight, first + 16
    end
    if used < 0 or (used > 0) ~= (first < size) then return nil end
  end
  local own, found = 0, nil -- the weight of the owner, and where its slot is
  if owner > 0 and first < size then
    local name = struct.pack('>I7', owner)
    found = string.find(state, name, first + 7, true)
    while found and found % 16 ~= 10 do found = string.find(state, name, found + 1, true) end
    if found then
      found = found - 7
      own = struct.unpack('>I2', state, found + 14)
      if own > used then return nil end
    end
  end
  local left = math.max(limit - used + own, 0)
  if op == ROOM then
    if cost == 0 then return units end
    return math.min(units, (left - left % cost) / cost)
  end

  local admitted, places, weight = true, false, 0
  local view
  if op == TAKE then
    cost = cost * units
    if state then view = string.format('%d,%d,%d', used, own, first < size and math.min(newest, now) or 0) end
    if cost == 0 then return true, nil, nil, view end
    if cost <= left then
      places, weight = true, cost
    else
      if not rebased then return false, nil, nil, view end
      admitted, found = false, nil
    end
  elseif op == RENEW then
    if found then
      if used > limit then admitted = false else places, weight = true, own end
    else
      if owner == 0 or cost == 0 or cost > left then return false end
      places, weight = true, cost
    end
  else
    if op == CHARGE then return true end
    if not found or cost == 0 then return false end
    weight = math.max(own - cost, 0)
  end

  local slots = state and string.sub(state, first) or ''
  if found then
    local kept = ''
    if weight > 0 and not places then kept = string.sub(state, found, found + 13) .. struct.pack('>I2', weight) end
    slots = string.sub(state, first, found - 1) .. kept .. string.sub(state, found + 16)
    used = used - own
  end
  used = used + weight
  if rebased then
    local offset, moved = #slots - 15, {}
    while offset > 0 and struct.unpack('>I7', slots, offset) > now do offset = offset - 16 end
    for at = offset + 16, #slots, 16 do
      moved[#moved + 1] = struct.pack('>I7', now) .. string.sub(slots, at + 7, at + 15)
    end
    slots = string.sub(slots, 1, offset + 15) .. table.concat(moved)
  end
  if places then slots = slots .. struct.pack('>I7I7I2', now, owner, weight) end
  if used > 0 then newest = struct.unpack('>I7', slots, #slots - 15) end
  return admitted, struct.pack('>I2', used) .. slots, used > 0 and newest + lease or now, view
end
