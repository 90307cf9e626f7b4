local call, margin = redis.call, 3600000 -- milliseconds: under injected time, the real one must not take keys away
if now then
  now = tonumber(now)
else
  local time = call('TIME')
  now, margin = time[1] * 1000000 + time[2], 2001
end
