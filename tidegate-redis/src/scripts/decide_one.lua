-- Purpose  Decide a plan of one enforced check, with as little overhead as possible: decide_batch.lua takes 73 % more for it. It must be
--          a script: between a read and a write in two commands, another instance could take the last unit.
-- KEYS[1]  key of the state of the check
-- KEYS[2]  optional: the overflow bucket, which decides if KEYS[1] does not exist
-- ARGV[1]  packed doubles: the arguments of the limit after `units`
-- ARGV[2]  optional, a packed double: the maximum TTL of the state in microseconds; empty if it has none
-- ARGV[3]  tests only: now, in microseconds
-- Reply    one string, as of decide_batch.lua: now as a packed double; the letter of the check; the state it was decided on; the
--          TTL of a state with a maximum TTL
local key, stored, max_ttl, ttl, admits, denies = KEYS[1], call('GET', KEYS[1]), nil, '', ';a', ';A'
if ARGV[2] and ARGV[2] ~= '' then max_ttl = struct.unpack('<d', ARGV[2]) end
if stored then
  if max_ttl then ttl = string.format('m%d', math.max(call('PTTL', key) - margin + MARGIN / 1000, 0)) end
elseif KEYS[2] then
  key, stored, max_ttl, admits, denies = KEYS[2], call('GET', KEYS[2]), nil, ';s', ';S'
end
local admitted, value, expiry, view = limit(stored, now, TAKE, 1, struct.unpack(layout, ARGV[1]))
if admitted == nil and not value then
  admitted, value, expiry, view = holds(limit, is_bucket, stored, now, TAKE, 1, 0, 0, 0, struct.unpack(layout, ARGV[1]))
end
if admitted == nil then return struct.pack('<d', now) .. (value and ';~' or ';!1') end
if value then
  local lasts = expiry - now
  if max_ttl and max_ttl < lasts then lasts = max_ttl end
  call('PSETEX', key, string.format('%d', lasts / 1000 + margin), value)
end
return struct.pack('<dc2c0', now, admitted and admits or denies, view or stored or '') .. ttl
