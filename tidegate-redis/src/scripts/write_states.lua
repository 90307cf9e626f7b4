-- Writes states, under the keys from `first_key` on. `numbers` has the instant at which each expires, and the length of its value within
-- `texts`; `value_of` returns the value to write and its expiry. A state that has expired is deleted, and so is an empty one.
local function write_states(first_key, numbers, texts, value_of)
  local start = 1
  for at = 1, #numbers, 16 do
    local expiry, length = struct.unpack('<dd', numbers, at)
    local k, text = first_key + (at - 1) / 16, string.sub(texts, start, start + length - 1)
    start = start + length
    text, expiry = value_of(k, text, expiry)
    if text == '' or expiry <= now then
      call('DEL', KEYS[k])
    else
      call('PSETEX', KEYS[k], string.format('%d', (expiry - now) / 1000 + margin), text)
    end
  end
end
