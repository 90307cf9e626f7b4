-- Twin of penalty.rs. The value: the number of strikes, followed by the end of the last one's block in sixteen digits of
-- microseconds: an integer which Redis keeps in eight bytes.
local function penalty(state, now, op, units, after, block, factor, max)
  -- The length of the block that a strike begins. No product passes `max`.
  local function block_micros(strike)
    if strike < after then return 0 end
    local length, largest = block, (max - max % factor) / factor
    if factor == 1 then return length end
    for _ = after + 1, strike do
      if length > largest then return max end
      length = length * factor
    end
    return length
  end
  local strikes, ends, left, rebased = 0, 0, 0, false
  if state then
    if #state < 17 or #state > 19 or string.find(state, '%D') then return nil end
    strikes, ends = tonumber(string.sub(state, 1, -17)), tonumber(string.sub(state, -16))
    if ends >= TOO_LARGE then return nil end
    if ends + max > now then
      local length = block_micros(strikes)
      if ends - length > now + MARGIN then ends, rebased = now + length, true end
      if length > 0 and ends > now then left = ends - now end
    else
      strikes, ends = 0, 0
    end
  end
  if op == ROOM then return left > 0 and 0 or units end
  local admitted = op ~= TAKE or left == 0
  if op == STRIKE and left == 0 then
    strikes = math.min(strikes + 1, MAX_STRIKES)
    ends = math.max(ends, now) + block_micros(strikes)
  elseif admitted or not rebased then
    return admitted
  end
  return admitted, string.format('%d%016d', strikes, ends), ends + max
end
