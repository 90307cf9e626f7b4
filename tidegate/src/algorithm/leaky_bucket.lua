-- Twin of leaky_bucket.rs: a token bucket of queue + 1 tokens whose debt becomes a delay. The value: the next free slot, in the
-- format of the token bucket. position_us and position_part: the slot after the one to refund. A refund returns false if others
-- wait behind that place.
local function leaky_bucket(state, now, op, units, cost_us, cost_part, rate, burst_us, burst_part,
                            max_delay, position_us, position_part)
  if state and #state > 16 and string.find(state, ',', 1, true) then return nil end -- only a token bucket counts refunds
  if op ~= REFUND then
    return token_bucket(state, now, op, units, cost_us, cost_part, rate, burst_us, burst_part, max_delay)
  end
  if token_bucket(state, now, CHARGE, 1, 0, 0, rate, burst_us, burst_part, 0) == nil then return nil end -- unreadable
  local position = string.format('%016d', position_us)
  if position_part > 0 then position = string.format('%d', position_part) .. position end
  if state ~= position then
    if not state then return true end
    local slot_us = tonumber(string.sub(state, -16))
    return slot_us < now or (slot_us == now and #state == 16)
  end

  local freed_us, freed_part = now, 0
  if position_us > cost_us or (position_us == cost_us and position_part > cost_part) then
    freed_us, freed_part = position_us - cost_us, position_part - cost_part
    if freed_part < 0 then freed_us, freed_part = freed_us - 1, freed_part + rate end
    if freed_us < now then freed_us, freed_part = now, 0 end
  end
  if freed_part == 0 then return true, string.format('%016d', freed_us), freed_us end
  return true, string.format('%d%016d', freed_part, freed_us), freed_us + 1
end
