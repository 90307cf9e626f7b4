-- Purpose  Write states of a partition that has lost its generation, and give it a new one with the last of them. One instance at a time
--          does so, by a lock. It must be a script: no state may be written after the generation is there.
-- KEYS[1]  key of the generation
-- KEYS[2]  key of the stream
-- KEYS[3]  key of the lock
-- KEYS[k]  from the fourth on: keys of the states
-- ARGV[1]  the new generation
-- ARGV[2]  who rebuilds: the value of the lock
-- ARGV[3]  packed doubles: 1 for the first call, else 0; 1 for the last call, else 0; how many milliseconds the lock is held
-- ARGV[4]  for each state two packed doubles: the instant at which it expires, in microseconds; the length of its value
-- ARGV[5]  the values, one after the other
-- ARGV[6]  tests only: now, in microseconds
-- Reply    the generation of the partition, "0" if it has none yet, "lost" if the lock is not held, "waiting" if entries wait in the stream
local generation, holder = call('GET', KEYS[1]), call('GET', KEYS[3])
local is_first, is_last, lock_millis = struct.unpack('<ddd', ARGV[3])
if generation then return generation end
if call('XLEN', KEYS[2]) > 0 then return 'waiting' end
if holder and holder ~= ARGV[2] or not holder and is_first == 0 then return 'lost' end
write_states(4, ARGV[4], ARGV[5], function(_, text, expiry) return text, expiry end)
if is_last == 0 then
  call('SET', KEYS[3], ARGV[2], 'PX', string.format('%d', lock_millis))
  return '0'
end
call('SET', KEYS[1], ARGV[1])
call('DEL', KEYS[3])
return ARGV[1]
