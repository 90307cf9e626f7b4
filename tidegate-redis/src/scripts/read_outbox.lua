-- Purpose  Read the oldest entries of the outbox of a partition, and how far it was written. It must be a script: the entries, the
--          generation and the position must be of one instant.
-- KEYS[1]  key of the generation
-- KEYS[2]  key of the stream
-- ARGV[1]  the largest number of entries
-- ARGV[2]  tests only: now, in microseconds
-- Reply    the generation, or nil; the last id that the stream has given; the last id that was deleted; the number of its entries; what
--          changes with every restart of the server and every failover to it; the entries, oldest first
-- A user may lack the permission for INFO.
local info = redis.pcall('INFO', 'replication')
local server = type(info) == 'string' and string.match(info, 'master_replid:(%w+)') or ''
local written, deleted = last_id(KEYS[2])
local entries = call('XRANGE', KEYS[2], '-', '+', 'COUNT', ARGV[1])
return { call('GET', KEYS[1]), written, deleted, call('XLEN', KEYS[2]), server, entries }
