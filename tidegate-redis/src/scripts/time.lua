-- Keys outlive their states by this margin in milliseconds. With an injected time it is an hour, since the server's own clock
-- must not expire keys that the injected time still needs.
local call, margin = redis.call, 3600000
if now then
  now = tonumber(now)
else
  local time = call('TIME')
  now, margin = time[1] * 1000000 + time[2], 2001
end
