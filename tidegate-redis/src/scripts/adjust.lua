-- Purpose      Charge what was already used, refund what was not, renew and release slots, end holds. Charges and refunds are never denied, not even
--              when the server is out of memory. It must be a script: another instance could write between a read and a write.
-- KEYS[i]      key of the state that adjustment i changes
-- KEYS[n+i]    with ANONYMOUS or LEDGER: the overflow bucket to charge if KEYS[i] does not exist, or KEYS[i] again
-- KEYS[2*n+i]  with LEDGER: the stream to which changes of KEYS[i] are appended, as by decide_batch.lua, or KEYS[i] again
-- KEYS[3*n+i]  with LEDGER: the key of the generation, or KEYS[i] again
-- ARGV[i]      packed doubles: algorithm; operation (3 charge, 4 refund, 5 renew, 7 commit, 9 release); 1 for a bundled refund, 2 for a
--              bundled place in a queue, else 0; maximum TTL of the state in microseconds, or infinite; for a commit or release the
--              owner, the actual cost, and 1 if the end is remembered, plus 2 for an overflow bucket, else 0; the arguments of the limit
--              after `units`; with LEDGER, as the last one, the generation
-- ARGV[n+1]    tests only: now, in microseconds
-- Reply        now; 1 if a bundled place has others behind it, so that nothing bundled was given back, 2 if the periods of a quota do not
--              contain now, so that nothing was changed, 3 if a generation is another one, so that nothing was changed, and then
--              the index of each such adjustment followed by the generation found, or 0, else 0; the index of each
--              adjustment that created a state; the negative index of each that was refused: the slot to renew or release is not held, or
--              the place in a queue has others behind it, or there is no such hold; -1000000 less the index of each hold that had ended
--              in the same way before, and -2000000 less the index of each that had ended in another way; for each entry that was appended
--              the text "l" with the index of its adjustment, the generation and the id, separated by commas
if LEDGER then
  local other = { now, 3 }
  for i = 1, checks do
    if KEYS[2 * checks + i] ~= KEYS[i] then
      local found = tonumber(string.match(call('GET', KEYS[3 * checks + i]) or '', '^%d+$') or 0)
      if found == 0 or found ~= struct.unpack('<d', ARGV[i], #ARGV[i] - 7) then
        other[#other + 1] = i
        other[#other + 1] = found
      end
    end
  end
  if #other > 2 then return other end
end
local stays_taken = 0
for i = 1, checks do
  local algorithm, op, bundled = struct.unpack('<ddd', ARGV[i])
  if bundled == 2 and limits[algorithm](call('GET', KEYS[i]), now, op, 1,
      struct.unpack(layouts[algorithm], ARGV[i], 33)) == false then
    stays_taken = 1
  end
end
local reply, keys, value, expiry, latest = { now, stays_taken }, {}, {}, {}, {}
local writers, entries = {}, {}
for i = 1, checks do
  local algorithm, op, bundled, max_ttl = struct.unpack('<dddd', ARGV[i])
  keys[i] = KEYS[i]
  local stored = latest[KEYS[i]] or call('GET', KEYS[i])
  local is_new = not stored
  if is_new and ANONYMOUS and KEYS[checks + i] ~= KEYS[i] then
    keys[i], max_ttl, is_new = KEYS[checks + i], math.huge, false
    if op == CHARGE and limits[algorithm] == quota then op = FILL end -- others share the bucket, so it has no debt
    stored = latest[keys[i]] or call('GET', keys[i])
  end
  local limit, layout, done, found, _ = limits[algorithm], layouts[algorithm], nil, nil, nil
  local owner, cost, remembered, period, consumed, late = 0, nil, nil, nil, nil, nil
  if op == COMMIT or op == RELEASE then
    owner, cost, remembered = struct.unpack('<ddd', ARGV[i], 33)
    done, value[i], expiry[i], _, found, period, consumed, late = holds(limit, limit == token_bucket, stored, now, op, 1, owner, cost, remembered,
      struct.unpack(layout, ARGV[i], 57))
  else
    done, value[i], expiry[i], _, period, consumed, late = limit(stored, now, op, 1, struct.unpack(layout, ARGV[i], 33))
    if done == nil and not value[i] then
      done, value[i], expiry[i], _, _, period, consumed, late = holds(limit, limit == token_bucket, stored, now, op, 1, 0, 0, 0,
        struct.unpack(layout, ARGV[i], 33))
    end
  end
  if done == nil and value[i] then return { now, 2 } end
  if done == nil then return redis.error_reply(string.format('UNREADABLE %d', i)) end
  if found and found > 1 then
    reply[#reply + 1] = -1000000 * (found - 1) - i
  elseif not done then
    reply[#reply + 1] = -i
  end
  if bundled > 0 and stays_taken == 1 then value[i] = nil end
  if value[i] then
    expiry[i], writers[keys[i]] = math.min(expiry[i], now + max_ttl), i
    if is_new then reply[#reply + 1] = i end
    local is_ended = found == 1
    if LEDGER and KEYS[2 * checks + i] ~= KEYS[i] and period and (is_ended or not found and (consumed ~= 0 or late ~= 0)) then
      local hard = struct.unpack('<d', ARGV[i], found and 73 or 49)
      local generation = struct.unpack('<d', ARGV[i], #ARGV[i] - 7)
      local kind = op == COMMIT and 3 or (op == RELEASE or op == REFUND) and 4 or 1
      entries[#entries + 1] = KEYS[2 * checks + i]
      local ended_at = found and remembered % 2 == 1 and now or 0 -- 0 if the end is not remembered
      entries[#entries + 1] = ledger_entry(keys[i], kind, period, consumed, late, 0, owner, ended_at, hard, generation)
      entries[#entries + 1] = string.format('l%d,%d,', i, generation)
    end
  end
  latest[keys[i]] = value[i] or stored -- input of the next adjustment of the same key
end
for i = 1, checks do
  if writers[keys[i]] == i then -- the last of the adjustments of a key that changed it
    call('PSETEX', keys[i], string.format('%d', (expiry[i] - now) / 1000 + margin), value[i])
  end
end
for i = 1, #entries, 3 do
  reply[#reply + 1] = entries[i + 2] .. call('XADD', entries[i], '*', 'e', entries[i + 1])
end
return reply
