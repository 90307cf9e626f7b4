-- Twin of holds.rs. The value: two zero bytes, with which no state of a limit begins; seven bytes each of the time to live, of the
-- units held since, and of since; two of the number of entries; twenty-two bytes an entry, oldest first: seven of microseconds, seven
-- of owner, seven of units, and one of status (0 open, 1 committed, 2 released); then the state of the limit, if there is one.
-- All with the high byte first.
--   holds(limit, is_bucket, state, now, op, units, owner, amount, terms, …)
--     →  admitted, value, expiry, view, found, index, consumed, late
--     limit    the function of the limit         is_bucket  whether it is the token bucket, whose cost is a span
--     op       any of the limit, RESERVE, COMMIT, RELEASE              …  the arguments of the limit after units
--     owner    of the hold, or 0                 amount     the units to reserve or to commit
--     terms    for RESERVE the time to live; for COMMIT and RELEASE 1 if the end is remembered, plus 2 for an overflow bucket, else 0
--     found    what RESERVE, COMMIT and RELEASE found: 0 no hold, 1 an open one, 2 the same end, 3 another end or cost
--     view     for TAKE and RESERVE, that of the limit, "h", the units that others hold, when the last of them runs out, and the number
--              of entries; also for ROOM, of a limit whose view is its state
--     index, consumed, late: of a quota, as it returns them with a changed value; for RESERVE, COMMIT and RELEASE always
local function holds(limit, is_bucket, state, now, op, units, owner, amount, terms, ...)
  local inner, count, held, since, lasts = state, 0, 0, 0, 0
  local is_held = state and #state >= 25 and string.sub(state, 1, 2) == '\0\0'
  if is_held then
    lasts, held, since, count = struct.unpack('>I7I7I7I2', state, 3)
    if #state < 25 + 22 * count then return nil end
    inner = #state > 25 + 22 * count and string.sub(state, 26 + 22 * count)
  elseif op ~= RESERVE and op ~= COMMIT and op ~= RELEASE then
    return nil
  end
  local readable, is_stale, inner_ends, start, before, index_before = limit(inner, now, KEEP, 1, ...)
  if readable == nil then return nil, is_stale end
  start = start or 0

  local first, past, newest, clock = 26, 26 + 22 * count, 0, now
  if count > 0 then
    newest = struct.unpack('>I7', state, past - 22)
    if newest >= TOO_LARGE then return nil end
    if newest > now and newest - now <= MARGIN then clock = newest end
  end
  if start > clock then clock = start end
  while first < past do
    local at, _, open, status = struct.unpack('>I7I7I7B', state, first)
    if at + lasts > clock then break end
    if status == 0 and at >= since then held = held - open end
    first = first + 22
  end
  local stale = newest > clock or (is_held and since ~= start)
  if is_held and since ~= start then
    held = 0
    for offset = first, past - 22, 22 do
      local at, _, open, status = struct.unpack('>I7I7I7B', state, offset)
      if status == 0 and at >= start then held = held + open end
    end
  end

  local _, own, own_at, own_units, own_status, others = nil, nil, 0, 0, 0, held
  if owner > 0 and first < past then
    local name = struct.pack('>I7', owner)
    own = string.find(state, name, first + 7, true)
    while own and (own - 33) % 22 ~= 0 do own = string.find(state, name, own + 1, true) end
    own = own and own < past and own - 7
    if own then
      own_at, _, own_units, own_status = struct.unpack('>I7I7I7B', state, own)
      if own_status == 0 and own_at >= start then others = held - own_units end
    end
  end

  -- The limit after the held units were consumed. A token bucket takes the span of one token, of which it makes that of all.
  local cost, part = ...
  local is_free = cost == 0 and (part == 0 or not is_bucket)
  local function beside_holds(...)
    if held == 0 or is_free then return inner end
    local charged
    if is_bucket then
      local _, _, rate, burst_us, burst_part, long_period = ...
      local period = long_period / 9223372036854775808
      local part = period % rate
      _, charged = limit(inner, now, CHARGE, held, (period - part) / rate, part, rate, burst_us, burst_part, long_period)
    else
      _, charged = limit(inner, now, CHARGE, held, 1, select(2, ...))
    end
    return charged or inner
  end

  local admitted, value, ends, view, found, edit, index, consumed, late = true, nil, nil, nil, 0, nil, nil, nil, nil
  local kept, last_end = (past - first) / 22, first < past and math.min(newest, clock) + lasts or 0
  if op == ROOM then
    local room, is_outdated = limit(beside_holds(...), now, ROOM, units, ...)
    return room, is_outdated, nil, (inner or '') .. string.format('h%d,%d,%d', held, last_end, kept)
  end
  if op == TAKE or op == RESERVE then
    admitted, value, ends, view, index, consumed, late = limit(inner, now, TAKE, units, ...)
    if admitted == nil then return nil, value end
    view = (view or inner or '') .. string.format('h%d,%d,%d', others, last_end, kept)
    if admitted and held > 0 and not own and not is_free then
      admitted = limit(beside_holds(...), now, TAKE, units, ...)
      if not admitted then value, index = nil, nil end
    end
  end
  if index_before and (op == RESERVE or op == COMMIT or op == RELEASE) then
    index, consumed, late = index_before + 1, 0, 0
  end
  if op == RESERVE then
    if own then
      admitted, value, found = own_status == 0 and own_units == amount, nil, own_status == 0 and 1 or 2
      if not admitted and own_status == 0 then found = 3 end
    elseif admitted then
      value = nil
      if kept >= MAX_RESERVATIONS then
        admitted = false
        for offset = first, past - 22, 22 do
          if string.byte(state, offset + 21) > 0 then
            admitted, edit = true, string.sub(state, first, offset - 1) .. string.sub(state, offset + 22, past - 1)
            break
          end
        end
      end
      if admitted then edit = edit or (first < past and string.sub(state, first, past - 1) or '') end
    end
  elseif op == COMMIT or op == RELEASE then
    if not own then
      admitted = false
    elseif own_status > 0 then
      admitted = own_status == 1 and op == COMMIT and own_units == amount or own_status == 2 and op == RELEASE
      found = admitted and 2 or 3
    else
      found = 1
      local at, charge = math.min(own_at, clock), terms >= 2 and index_before and FILL or CHARGE
      if op == COMMIT then
        local changed_index, changed, changed_late
        if at >= start then
          _, value, ends, _, changed_index, changed, changed_late = limit(inner, now, charge, 1, ...)
        elseif index_before then
          if not before then return nil, true end
          local position = at >= before and index_before or 0
          _, value, ends, _, changed_index, changed, changed_late =
            limit(inner, now, charge, 1, amount, position, select(3, ...))
        end
        if changed_index then index, consumed, late = changed_index, changed, changed_late end
      end
      local ended = ''
      if terms % 2 == 1 then
        ended = string.sub(state, own, own + 13)
          .. struct.pack('>I7B', op == COMMIT and amount or 0, op == COMMIT and 1 or 2)
      end
      edit = string.sub(state, first, own - 1) .. ended .. string.sub(state, own + 22, past - 1)
      if own_at >= start then held = held - own_units end
    end
  elseif op ~= TAKE then
    admitted, value, ends, _, index, consumed, late = limit(inner, now, op, units, ...)
    if not value then return admitted end
  end
  if not value and not edit and not stale then return admitted, nil, nil, view, found, index, consumed, late end

  local entries = edit or (first < past and string.sub(state, first, past - 1) or '')
  if newest > clock then
    local offset, moved = #entries - 21, {}
    while offset > 0 and struct.unpack('>I7', entries, offset) > clock do offset = offset - 22 end
    for at = offset + 22, #entries, 22 do
      moved[#moved + 1] = struct.pack('>I7', clock) .. string.sub(entries, at + 7, at + 21)
    end
    entries = string.sub(entries, 1, offset + 21) .. table.concat(moved)
  end
  if op == RESERVE and edit then
    entries = entries .. struct.pack('>I7I7I7B', clock, owner, amount, 0)
    lasts, held = terms, held + amount
  end
  inner, inner_ends = value or inner, value and ends or inner_ends
  if entries == '' and inner then return admitted, inner, inner_ends, view, found, index, consumed, late end
  newest = entries ~= '' and struct.unpack('>I7', entries, #entries - 21) + lasts or 0
  value = '\0\0' .. struct.pack('>I7I7I7I2', lasts, held, start, #entries / 22) .. entries .. (inner or '')
  return admitted, value, math.max(inner_ends, newest), view, found, index, consumed, late
end
