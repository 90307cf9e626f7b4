-- Purpose  Say that an instance lives, and count all that do. It must be a script: of two that read the same list, each would
--          write it back without the other.
-- KEYS[1]  where the list is: for each instance eight bytes of its name, and an eight-byte number, when it was heard last
-- ARGV[1]  eight bytes: the name of this one
-- ARGV[2]  eight-byte numbers: for how many microseconds an instance counts that is not heard; how many there may be
-- ARGV[3]  tests only: now, in microseconds
-- Reply    how many live
local found, name = call('GET', KEYS[1]) or '', ARGV[1]
local span, most = struct.unpack('<dd', ARGV[2])
if #found % 16 ~= 0 then return redis.error_reply('UNREADABLE 1') end
local live = { struct.pack('<c8d', name, now) }
for at = 1, #found, 16 do
  local other, seen = struct.unpack('<c8d', found, at)
  -- After a clock stepped back, some were heard in the future.
  if other ~= name and math.abs(now - seen) <= span and #live < most then
    live[#live + 1] = string.sub(found, at, at + 15)
  end
end
call('PSETEX', KEYS[1], string.format('%d', span / 1000 + margin), table.concat(live))
return { #live }
