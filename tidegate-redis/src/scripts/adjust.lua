-- Purpose    Count what has already happened, or give back what was not used: charges and refunds are never refused, not
--            even when the server is out of memory.
-- KEYS[i]    where the state is
-- KEYS[n+i]  for strangers, of whom there are too many: the overflow bucket to charge if there is no state, or the same key again
-- ARGV[i]    eight-byte numbers: kind; operation (3 charge, 4 refund); how long the state is remembered at most, in microseconds,
--            or infinite; what the limit takes after its units
-- ARGV[n+1]  tests only: now, in microseconds
-- Reply      now; the number of each that created a state where there was none
local reply, keys, value, expiry, latest = { now }, {}, {}, {}, {}
for i = 1, checks do
  local kind, op, longest = struct.unpack('<ddd', ARGV[i])
  keys[i] = KEYS[i]
  local found = latest[KEYS[i]] or call('GET', KEYS[i])
  local new = not found
  if new and STRANGERS and KEYS[checks + i] ~= KEYS[i] then
    keys[i], longest, new = KEYS[checks + i], math.huge, false
    found = latest[keys[i]] or call('GET', keys[i])
  end
  local readable
  readable, value[i], expiry[i] = limits[kind](found, now, op, 1, struct.unpack(layouts[kind], ARGV[i], 25))
  if readable == nil then return redis.error_reply(string.format('UNREADABLE %d', i)) end
  if value[i] then
    expiry[i] = math.min(expiry[i], now + longest)
    if new then reply[#reply + 1] = i end
  end
  latest[keys[i]] = value[i] or found -- the next one of the same key goes on from here
end
for i = 1, checks do
  if value[i] then
    call('PSETEX', keys[i], string.format('%d', (expiry[i] - now) / 1000 + margin), value[i])
  end
end
return reply
