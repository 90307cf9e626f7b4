-- Purpose  Read the oldest entries of the outbox of a partition, and how far it was written. It must be a script: the entries, the
--          generation and the position must be of one instant.
-- KEYS[1]  key of the generation
-- KEYS[2]  key of the stream
-- ARGV[1]  the largest number of entries
-- ARGV[2]  tests only: now, in microseconds
-- Reply    the generation, or nil; the last id that the stream has given; the number of its entries; the entries, oldest first
return { call('GET', KEYS[1]), last_id(KEYS[2]), call('XLEN', KEYS[2]), call('XRANGE', KEYS[2], '-', '+', 'COUNT', ARGV[1]) }
