-- Purpose    Read states of a partition, and how far its outbox was written. It must be a script: both must be of one instant.
-- KEYS[1]    key of the generation
-- KEYS[2]    key of the stream
-- KEYS[i+2]  keys of the states
-- ARGV[1]    tests only: now, in microseconds
-- Reply      the generation, or nil; the last id that the stream has given; the values of the states, each as it is or nil. A value of
--            another type is unreadable, like '?'
local values = {}
for i = 1, #KEYS - 2 do
  local value = redis.pcall('GET', KEYS[i + 2])
  values[i] = type(value) == 'table' and '?' or value
end
return { call('GET', KEYS[1]), last_id(KEYS[2]), values }
