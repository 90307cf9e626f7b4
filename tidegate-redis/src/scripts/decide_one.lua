-- Purpose  Decide a plan of one check in as few steps as there are. It must be a script: between a read and a write of two
--          commands, another instance could take the last unit too.
-- KEYS[1]  where the state of the check is
-- ARGV[1]  eight-byte numbers: what the limit takes after its units
-- ARGV[2]  tests only: now, in microseconds
-- Reply    one string, which costs less than a list: an eight-byte number, now, negative if denied; what was found
local found = call('GET', KEYS[1])
local admitted, value, expiry, view = limit(found, now, TAKE, 1, struct.unpack(layout, ARGV[1]))
if admitted == nil then return redis.error_reply('UNREADABLE 1') end
if value then call('PSETEX', KEYS[1], string.format('%d', (expiry - now) / 1000 + margin), value) end
return struct.pack('<dc0', admitted and now or -now, view or found or '')
