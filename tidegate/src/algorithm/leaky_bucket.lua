-- Twin of leaky_bucket.rs: a token bucket of queue + 1 tokens whose debt is served as a delay. The value: the next free
-- slot, written like the token bucket's moment. place_us and place_part: the slot after the one to be given back.
local function leaky_bucket(state, now, op, units, cost_us, cost_part, rate, burst_us, burst_part,
                            longest_delay, place_us, place_part)
  if op ~= REFUND then
    return token_bucket(state, now, op, units, cost_us, cost_part, rate, burst_us, burst_part, longest_delay)
  end
  if token_bucket(state, now, CHARGE, 1, 0, 0, rate, burst_us, burst_part, 0) == nil then return nil end -- unreadable
  local place = string.format('%016d', place_us)
  if place_part > 0 then place = string.format('%d', place_part) .. place end
  if state ~= place then return true end

  local freed_us, freed_part = now, 0
  if place_us > cost_us or (place_us == cost_us and place_part > cost_part) then
    freed_us, freed_part = place_us - cost_us, place_part - cost_part
    if freed_part < 0 then freed_us, freed_part = freed_us - 1, freed_part + rate end
    if freed_us < now then freed_us, freed_part = now, 0 end
  end
  if freed_part == 0 then return true, string.format('%016d', freed_us), freed_us end
  return true, string.format('%d%016d', freed_part, freed_us), freed_us + 1
end
