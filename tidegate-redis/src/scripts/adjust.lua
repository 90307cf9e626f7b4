-- Purpose    Count what has already happened, or give back what was not used: charges and refunds are never refused, not
--            even when the server is out of memory.
-- KEYS[i]    where the state is
-- ARGV[i]    eight-byte numbers: kind; operation (3 charge, 4 refund); what the limit takes after its units
-- ARGV[n+1]  tests only: now, in microseconds
-- Reply      now
local value, expiry, latest = {}, {}, {}
for i = 1, #KEYS do
  local kind, op = struct.unpack('<dd', ARGV[i])
  local found = latest[KEYS[i]] or call('GET', KEYS[i])
  local readable
  readable, value[i], expiry[i] = limits[kind](found, now, op, 1, struct.unpack(layouts[kind], ARGV[i], 17))
  if readable == nil then return redis.error_reply(string.format('UNREADABLE %d', i)) end
  latest[KEYS[i]] = value[i] or found -- the next one of the same key goes on from here
end
for i = 1, #KEYS do
  if value[i] then
    call('PSETEX', KEYS[i], string.format('%d', (expiry[i] - now) / 1000 + margin), value[i])
  end
end
return { now }
