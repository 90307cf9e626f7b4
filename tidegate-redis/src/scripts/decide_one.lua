-- Purpose  Decide a plan of one check in as few steps as there are. It must be a script: between a read and a write of two
--          commands, another instance could take the last unit too.
-- KEYS[1]  where the state of the check is
-- ARGV[1]  eight-byte numbers: what the limit takes after its units
-- ARGV[2]  tests only: now, in microseconds
-- Reply    now; 1 if admitted, else 0; what was found
local found = redis.call('GET', KEYS[1])
local admitted, value, expiry, view = limit(found, now, TAKE, 1, struct.unpack(layout, ARGV[1]))
if admitted == nil then return redis.error_reply('UNREADABLE 1') end
if value then redis.call('PSETEX', KEYS[1], string.format('%d', (expiry - now) / 1000 + margin), value) end
return { now, admitted and 1 or 0, view or found }
