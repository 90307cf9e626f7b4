-- Purpose  Decide a plan of one enforced check of an unauthenticated subject, whose state has a maximum TTL or an overflow bucket.
--          With neither, the result is that of decide_one.lua.
-- KEYS[1]  key of the state of the check
-- KEYS[2]  optional: the overflow bucket, which decides if KEYS[1] does not exist
-- ARGV[1]  packed doubles: the arguments of the limit after `units`
-- ARGV[2]  a packed double: the maximum TTL of the state in microseconds, or infinite
-- ARGV[3]  tests only: now, in microseconds
-- Reply    one string, as of decide_batch.lua: now as a packed double; the letter of the check; the state it was decided on; the
--          TTL of a state with a maximum TTL
local key, max_ttl, letters, ttl = KEYS[1], struct.unpack('<d', ARGV[2]), ';a;A', ''
local stored = call('GET', key)
if stored then
  if max_ttl < math.huge then
    ttl = string.format('m%d', math.max(call('PTTL', key) - margin + MARGIN / 1000, 0))
  end
elseif KEYS[2] then
  key, max_ttl, letters = KEYS[2], math.huge, ';s;S'
  stored = call('GET', key)
end
local admitted, value, expiry, view = limit(stored, now, TAKE, 1, struct.unpack(layout, ARGV[1]))
if admitted == nil and not value then
  admitted, value, expiry, view = holds(limit, is_bucket, stored, now, TAKE, 1, 0, 0, 0, struct.unpack(layout, ARGV[1]))
end
if admitted == nil then return struct.pack('<d', now) .. (value and ';~' or ';!1') end
if value then call('PSETEX', key, string.format('%d', math.min(expiry - now, max_ttl) / 1000 + margin), value) end
local letter = admitted and string.sub(letters, 1, 2) or string.sub(letters, 3)
return struct.pack('<dc2', now, letter) .. (view or stored or '') .. ttl
