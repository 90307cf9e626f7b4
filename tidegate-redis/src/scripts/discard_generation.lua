-- Purpose  Take the generation from a partition whose states are older than the ledger, so that it is rebuilt. It must be a script: another
--          instance may have rebuilt it in between.
-- KEYS[1]  key of the generation
-- ARGV[1]  the generation
-- ARGV[2]  tests only: now, in microseconds
-- Reply    1 if the partition had this generation, else 0
if call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return call('DEL', KEYS[1])
