-- Applies an operation to a state with holds; nil if it has none and is unreadable. A limit is a table: its function, two numbers that the
-- function does not take, and the arguments of the function after `units`.
local function apply_beside_holds(limit, state, op, units)
  local admitted, value, expiry, view, _, period, consumed, late =
    holds(limit[1], limit[1] == token_bucket, state, now, op, units, 0, 0, 0,
      limit[4], limit[5], limit[6], limit[7], limit[8], limit[9], limit[10], limit[11])
  return admitted, value, expiry, view, period, consumed, late
end

-- Applies an operation to any state. Returns what the function returns, for a quota with the period and the units consumed in it and in
-- the one before. `admitted` is nil if the state is unreadable.
local function apply(limit, state, op, units)
  local admitted, value, expiry, view, period, consumed, late = limit[1](state, now, op, units,
    limit[4], limit[5], limit[6], limit[7], limit[8], limit[9], limit[10], limit[11])
  if admitted == nil then return apply_beside_holds(limit, state, op, units) end
  return admitted, value, expiry, view, period, consumed, late
end
