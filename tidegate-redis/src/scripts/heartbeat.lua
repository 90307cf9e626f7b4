-- Purpose  Register an instance and its rule set as live, and count all live ones. It must be a script: two instances that read the same
--          list would each write it back without the other.
-- KEYS[1]  key of the list of instances: for each eight bytes of its id, and its last heartbeat as a packed double
-- KEYS[2]  key of the list of rule sets: since when there have been several, as a packed double, or 0; then for each eight bytes of its
--          fingerprint, and the last heartbeat of an instance that has it, as a packed double
-- ARGV[1]  eight bytes: the id of this instance
-- ARGV[2]  eight bytes: the fingerprint of its rules; empty if it is not known
-- ARGV[3]  packed doubles: how many microseconds an entry is live after its heartbeat; size limit of the lists
-- ARGV[4]  tests only: now, in microseconds
-- Reply    number of live instances; number of live rule sets, 0 without a fingerprint; for how many microseconds there have been several
local ttl, max_entries = struct.unpack('<dd', ARGV[3])
local expiry = string.format('%d', ttl / 1000 + margin)
local instances, rules = call('GET', KEYS[1]) or '', call('GET', KEYS[2]) or struct.pack('<d', 0)
if #instances % 16 ~= 0 or #rules % 16 ~= 8 then return redis.error_reply('UNREADABLE 1') end

-- The live entries from position `at` of a list, this one first.
local function live_entries(list, at, id)
  local live = { struct.pack('<c8d', id, now) }
  for at = at, #list, 16 do
    local other_id, last_heartbeat = struct.unpack('<c8d', list, at)
    -- After the clock stepped back, heartbeats may be in the future.
    if other_id ~= id and math.abs(now - last_heartbeat) <= ttl and #live < max_entries then
      live[#live + 1] = string.sub(list, at, at + 15)
    end
  end
  return live
end

local live = live_entries(instances, 1, ARGV[1])
call('PSETEX', KEYS[1], expiry, table.concat(live))
local rule_sets, several = 0, 0
if #ARGV[2] == 8 then
  local live_rules, since = live_entries(rules, 9, ARGV[2]), struct.unpack('<d', rules)
  rule_sets = #live_rules
  if rule_sets == 1 then
    since = 0
  elseif since == 0 or since > now then
    since = now
  end
  if since > 0 then several = now - since end
  call('PSETEX', KEYS[2], expiry, struct.pack('<d', since) .. table.concat(live_rules))
end
return { #live, rule_sets, several }
