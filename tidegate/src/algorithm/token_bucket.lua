-- Twin of token_bucket.rs. The value: the moment at which the bucket is full again, as sixteen digits of microseconds,
-- after the digits of the part if it is not 0. Up to a part of 922 that is an integer which Redis keeps in eight bytes.
-- longest_delay is infinite here: only the leaky bucket, which is a token bucket too, limits how far ahead it may be.
local function token_bucket(state, now, op, units, cost_us, cost_part, rate, burst_us, burst_part, longest_delay)
  local admitted, full_us, full_part, rebased = true, now, 0, false
  local ceiling_us, ceiling_part = now + burst_us, burst_part
  if state then
    if #state < 16 or string.find(state, '%D') then return nil end
    if #state == 16 then
      full_us = tonumber(state)
    else
      full_us, full_part = tonumber(string.sub(state, -16)), tonumber(string.sub(state, 1, -17))
      if full_part >= TOO_LARGE then return nil end
      if full_part >= rate then full_us, full_part = full_us + 1, 0 end
    end
    if full_us >= TOO_LARGE then return nil end
    if full_us < now then
      full_us, full_part = now, 0
    elseif full_us > ceiling_us or (full_us == ceiling_us and full_part > ceiling_part) then
      full_us, full_part, rebased = ceiling_us, ceiling_part, true
    end
  end
  if cost_us == 0 and cost_part == 0 then return op ~= ROOM or units end

  if op == REFUND then
    local owed_us = full_us - now
    if cost_us > owed_us or (cost_us == owed_us and cost_part > full_part) then
      cost_us, cost_part = owed_us, full_part
      if cost_us == 0 and cost_part == 0 then return true end
    end
    full_us, full_part = full_us - cost_us, full_part - cost_part
    if full_part < 0 then full_us, full_part = full_us - 1, full_part + rate end
  else
    local slack_us, slack_part = ceiling_us - full_us, ceiling_part - full_part
    if slack_part < 0 then slack_us, slack_part = slack_us - 1, slack_part + rate end
    local late = full_us - now > longest_delay or (full_us - now == longest_delay and full_part > 0)

    if op == ROOM then
      -- The largest multiple of the cost that fits, bit by bit: a product could pass 2^53.
      local doubled, us, part, count = {}, cost_us, cost_part, 1
      while not late and count <= units and (us < slack_us or (us == slack_us and part <= slack_part)) do
        doubled[#doubled + 1] = { us, part }
        us, part, count = us + us, part + part, count + count
        if part >= rate then us, part = us + 1, part - rate end
      end
      local granted = 0
      for i = #doubled, 1, -1 do
        us, part, count = doubled[i][1], doubled[i][2], count / 2
        if granted + count <= units and (us < slack_us or (us == slack_us and part <= slack_part)) then
          granted, slack_us, slack_part = granted + count, slack_us - us, slack_part - part
          if slack_part < 0 then slack_us, slack_part = slack_us - 1, slack_part + rate end
        end
      end
      return granted
    end

    if units > 1 then
      local us, part, left = cost_us, cost_part, units
      cost_us, cost_part = 0, 0
      while left > 0 do
        if left % 2 == 1 then
          left, cost_us, cost_part = left - 1, cost_us + us, cost_part + part
          if cost_part >= rate then cost_us, cost_part = cost_us + 1, cost_part - rate end
        end
        left, us, part = left / 2, us + us, part + part
        if part >= rate then us, part = us + 1, part - rate end
      end
    end
    if cost_us > slack_us or (cost_us == slack_us and cost_part > slack_part) or (late and op == TAKE) then
      if op == CHARGE then
        cost_us, cost_part = slack_us, slack_part
        if cost_us == 0 and cost_part == 0 then return true end
      elseif rebased then
        admitted, cost_us, cost_part = false, 0, 0
      else
        return false
      end
    end
    full_us, full_part = full_us + cost_us, full_part + cost_part
    if full_part >= rate then full_us, full_part = full_us + 1, full_part - rate end
  end
  if full_part == 0 then return admitted, string.format('%016d', full_us), full_us end
  return admitted, string.format('%d%016d', full_part, full_us), full_us + 1
end
