-- Purpose  Decide a plan of one check of an unauthenticated subject, whose state has a maximum TTL or an overflow bucket. With
--          neither, the result is that of decide_one.lua.
-- KEYS[1]  key of the state of the check
-- KEYS[2]  optional: the overflow bucket, which decides if KEYS[1] does not exist
-- ARGV[1]  packed doubles: the arguments of the limit after `units`
-- ARGV[2]  a packed double: the maximum TTL of the state in microseconds, or infinite
-- ARGV[3]  tests only: now, in microseconds
-- Reply    one string: now as a packed double, negative if denied; a packed double, -1 if the overflow bucket decided, otherwise
--          the milliseconds that a state with a maximum TTL had left; the state it was decided on
local key, max_ttl, mark = KEYS[1], struct.unpack('<d', ARGV[2]), 0
local stored = call('GET', key)
if stored then
  if max_ttl < math.huge then mark = math.max(call('PTTL', key) - margin + MARGIN / 1000, 0) end
elseif KEYS[2] then
  key, max_ttl, mark = KEYS[2], math.huge, -1
  stored = call('GET', key)
end
local admitted, value, expiry, view = limit(stored, now, TAKE, 1, struct.unpack(layout, ARGV[1]))
if admitted == nil then return redis.error_reply('UNREADABLE 1') end
if value then call('PSETEX', key, string.format('%d', math.min(expiry - now, max_ttl) / 1000 + margin), value) end
return struct.pack('<ddc0', admitted and now or -now, mark, view or stored or '')
