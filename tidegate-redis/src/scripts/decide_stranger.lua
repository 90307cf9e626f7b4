-- Purpose  Decide a plan of one check of a subject that nobody vouches for, if there are too many of these or they are forgotten
--          early. Otherwise it is decide_one.lua, and the answer is the same.
-- KEYS[1]  where the state of the check is
-- KEYS[2]  only if there are too many: the overflow bucket, which decides if there is no state
-- ARGV[1]  eight-byte numbers: what the limit takes after its units
-- ARGV[2]  an eight-byte number: how long the state is remembered at most, in microseconds, or infinite
-- ARGV[3]  tests only: now, in microseconds
-- Reply    one string: an eight-byte number, now, negative if denied; another, -1 if the overflow bucket decided, otherwise how
--          many milliseconds a state that is forgotten early had left; what was found
local key, longest, mark = KEYS[1], struct.unpack('<d', ARGV[2]), 0
local found = call('GET', key)
if found then
  if longest < math.huge then mark = math.max(call('PTTL', key) - margin + MARGIN / 1000, 0) end
elseif KEYS[2] then
  key, longest, mark = KEYS[2], math.huge, -1
  found = call('GET', key)
end
local admitted, value, expiry, view = limit(found, now, TAKE, 1, struct.unpack(layout, ARGV[1]))
if admitted == nil then return redis.error_reply('UNREADABLE 1') end
if value then call('PSETEX', key, string.format('%d', math.min(expiry - now, longest) / 1000 + margin), value) end
return struct.pack('<ddc0', admitted and now or -now, mark, view or found or '')
