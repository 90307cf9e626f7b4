-- Purpose    Read states of a partition, and how far its outbox was written. It must be a script: both must be of one instant.
-- KEYS[1]    key of the generation
-- KEYS[2]    key of the stream
-- KEYS[i+2]  keys of the states
-- ARGV[1]    tests only: now, in microseconds
-- Reply      the generation, or nil; the last id that the stream has given; the values of the states, each as it is or nil
local values = {}
for i = 1, #KEYS - 2 do values[i] = call('GET', KEYS[i + 2]) end
return { call('GET', KEYS[1]), last_id(KEYS[2]), values }
