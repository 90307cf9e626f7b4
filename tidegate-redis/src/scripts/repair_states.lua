-- Purpose  Replace states of a partition by those of the ledger, unless anything has changed since they were read there. Holds beside a
--          state stay. It must be a script: another instance could change a state in between.
-- KEYS[1]  key of the generation
-- KEYS[2]  key of the stream
-- KEYS[k]  from the third on: keys of the states
-- ARGV[1]  the generation
-- ARGV[2]  the last id that the stream had given
-- ARGV[3]  for each state two packed doubles: the instant at which it expires, in microseconds; the length of its value
-- ARGV[4]  the values, one after the other; an empty one for a state that is to be deleted
-- ARGV[5]  tests only: now, in microseconds
-- Reply    1 if the states were replaced, 0 if the generation is another one, entries wait in the stream, or it has given another id
if call('GET', KEYS[1]) ~= ARGV[1] or call('XLEN', KEYS[2]) > 0 or last_id(KEYS[2]) ~= ARGV[2] then return 0 end
write_states(3, ARGV[3], ARGV[4], function(k, text, expiry)
  local stored = redis.pcall('GET', KEYS[k]) -- a table for a value of another type, which is overwritten
  if type(stored) ~= 'string' or #stored < 25 or string.sub(stored, 1, 2) ~= '\0\0' then return text, expiry end
  local lasts, _, _, count = struct.unpack('>I7I7I7I2', stored, 3)
  local past = 26 + 22 * count
  if count == 0 or #stored < past - 1 then return text, expiry end
  return string.sub(stored, 1, past - 1) .. text, math.max(expiry, struct.unpack('>I7', stored, past - 22) + lasts)
end)
return 1
