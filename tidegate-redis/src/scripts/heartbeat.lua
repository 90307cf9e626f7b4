-- Purpose  Register an instance as live, and count all live instances. It must be a script: two instances that read the same
--          list would each write it back without the other.
-- KEYS[1]  key of the list: for each instance eight bytes of its id, and its last heartbeat as a packed double
-- ARGV[1]  eight bytes: the id of this instance
-- ARGV[2]  packed doubles: how many microseconds an instance is live after its heartbeat; size limit of the list
-- ARGV[3]  tests only: now, in microseconds
-- Reply    number of live instances
local list, id = call('GET', KEYS[1]) or '', ARGV[1]
local ttl, max_instances = struct.unpack('<dd', ARGV[2])
if #list % 16 ~= 0 then return redis.error_reply('UNREADABLE 1') end
local live = { struct.pack('<c8d', id, now) }
for at = 1, #list, 16 do
  local other_id, last_heartbeat = struct.unpack('<c8d', list, at)
  -- After the clock stepped back, heartbeats may be in the future.
  if other_id ~= id and math.abs(now - last_heartbeat) <= ttl and #live < max_instances then
    live[#live + 1] = string.sub(list, at, at + 15)
  end
end
call('PSETEX', KEYS[1], string.format('%d', ttl / 1000 + margin), table.concat(live))
return { #live }
