-- Twin of token_bucket.rs. The value: the instant at which the bucket is full again, in sixteen digits of microseconds, preceded
-- by the digits of the fraction if it is not 0. Up to a fraction of 922 Redis stores it as an eight-byte integer. After a refund,
-- a comma and the microseconds returned follow. max_delay is the refill period times 2^63 here, which is longer than any delay and
-- needed by holds.lua; the leaky bucket, which calls this function, sets it. The last five arguments are the position of a take to refund.
local function token_bucket(state, now, op, units, cost_us, cost_part, rate, burst_us, burst_part, max_delay,
                            alone_us, alone_part, order_us, order_part, order_returned)
  local full_us, full_part, ceiling_us, rebased, returned = now, 0, now + burst_us, false, 0
  if state then
    if #state == 16 then
      full_us = tonumber(state)
      if not full_us or string.format('%016d', full_us) ~= state then return nil end
    else
      local moment, comma = state, string.find(state, ',', 1, true)
      if comma then
        moment, returned = string.sub(state, 1, comma - 1), tonumber(string.sub(state, comma + 1))
        if not returned or returned < 1 or returned > MAX_RETURNED then return nil end
        if string.format('%s,%d', moment, returned) ~= state then return nil end
      end
      local micros, part = string.sub(moment, -16), string.sub(moment, 1, -17)
      full_us, full_part = tonumber(micros), part == '' and 0 or tonumber(part)
      if not full_us or not full_part or full_part >= TOO_LARGE then return nil end
      if string.format('%016d', full_us) ~= micros then return nil end
      if part ~= '' and string.format('%d', full_part) ~= part then return nil end
      if full_part >= rate then full_us, full_part = full_us + 1, 0 end
    end
    if full_us < now then
      if returned > 0 then
        local ends = full_us + (full_part > 0 and 1 or 0)
        if ends + math.min(returned, burst_us + (burst_part > 0 and 1 or 0)) <= now then returned = 0 end
      end
      full_us, full_part = now, 0
    elseif full_us > ceiling_us or (full_us == ceiling_us and full_part > burst_part) then
      if full_us >= TOO_LARGE then return nil end
      full_us, full_part, rebased = ceiling_us, burst_part, true
    end
  end
  if op == KEEP then
    local ends = full_us + (full_part > 0 and 1 or 0)
    return true, nil, ends + math.min(returned, burst_us + (burst_part > 0 and 1 or 0))
  end
  if cost_us == 0 and cost_part == 0 then return op ~= ROOM or units end

  if units > 1 and op ~= ROOM then
    -- The cost times the units, bit by bit: a product could pass 2^53.
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

  local admitted, wait = true, full_us - now
  if op == TAKE then
    local next_us, next_part = full_us + cost_us, full_part + cost_part
    if next_part >= rate then next_us, next_part = next_us + 1, next_part - rate end
    if next_us > ceiling_us or (next_us == ceiling_us and next_part > burst_part)
      or wait > max_delay or (wait == max_delay and full_part > 0) then
      if not rebased then return false end
      admitted = false
    else
      full_us, full_part = next_us, next_part
    end
  elseif op == REFUND then
    local is_last = order_us == full_us and order_part == full_part and order_returned == returned
    local until_us, until_part = alone_us, alone_part < rate and alone_part or 0
    if returned >= order_returned and returned < MAX_RETURNED then
      order_us, order_part = order_us - (returned - order_returned), order_part < rate and order_part or 0
      if order_us > until_us or (order_us == until_us and order_part > until_part) then
        until_us, until_part = order_us, order_part
      end
    end
    local missing, back_us, back_part = until_us - now, cost_us, cost_part
    if wait < back_us or (wait == back_us and full_part < back_part) then back_us, back_part = wait, full_part end
    if missing < back_us or (missing == back_us and until_part < back_part) then
      back_us, back_part = missing, until_part
    end
    if back_us < 0 or (back_us == 0 and back_part == 0) then return true end
    full_us, full_part = full_us - back_us, full_part - back_part
    if full_part < 0 then full_us, full_part = full_us - 1, full_part + rate end
    if not is_last then returned = math.min(returned + back_us + (back_part > 0 and 1 or 0), MAX_RETURNED) end
  else
    local slack_us, slack_part = ceiling_us - full_us, burst_part - full_part
    if slack_part < 0 then slack_us, slack_part = slack_us - 1, slack_part + rate end
    if op == ROOM then
      if wait > max_delay or (wait == max_delay and full_part > 0) then return 0 end
      local slack, cost = slack_us * rate + slack_part, cost_us * rate + cost_part
      if slack < TOO_LARGE and cost < TOO_LARGE then return math.min(units, (slack - slack % cost) / cost) end
      -- The largest multiple of the cost that fits, bit by bit likewise.
      local doubled, us, part, count = {}, cost_us, cost_part, 1
      while count <= units and (us < slack_us or (us == slack_us and part <= slack_part)) do
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
    if slack_us == 0 and slack_part == 0 then return true end
    if cost_us > slack_us or (cost_us == slack_us and cost_part > slack_part) then
      full_us, full_part = ceiling_us, burst_part
    else
      full_us, full_part = full_us + cost_us, full_part + cost_part
      if full_part >= rate then full_us, full_part = full_us + 1, full_part - rate end
    end
  end
  if returned > 0 then
    local part = full_part > 0 and string.format('%d', full_part) or ''
    local ends = full_us + (full_part > 0 and 1 or 0) + math.min(returned, burst_us + (burst_part > 0 and 1 or 0))
    return admitted, string.format('%s%016d,%d', part, full_us, returned), ends
  end
  if full_part == 0 then return admitted, string.format('%016d', full_us), full_us end
  return admitted, string.format('%d%016d', full_part, full_us), full_us + 1
end
