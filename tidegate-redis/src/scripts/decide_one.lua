-- Purpose  Decide a plan of one enforced check, with as little overhead as possible. It must be a script: between a read and a
--          write in two commands, another instance could take the last unit.
-- KEYS[1]  key of the state of the check
-- ARGV[1]  packed doubles: the arguments of the limit after `units`
-- ARGV[2]  tests only: now, in microseconds
-- Reply    one string, as of decide_batch.lua: now as a packed double; the letter of the check; the state it was decided on
local stored = call('GET', KEYS[1])
local admitted, value, expiry, view = limit(stored, now, TAKE, 1, struct.unpack(layout, ARGV[1]))
if admitted == nil and not value then
  admitted, value, expiry, view = holds(limit, is_bucket, stored, now, TAKE, 1, 0, 0, 0, struct.unpack(layout, ARGV[1]))
end
if admitted == nil then return struct.pack('<d', now) .. (value and ';~' or ';!1') end
if value then call('PSETEX', KEYS[1], string.format('%d', (expiry - now) / 1000 + margin), value) end
return struct.pack('<dc2c0', now, admitted and ';a' or ';A', view or stored or '')
