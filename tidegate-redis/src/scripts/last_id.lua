-- The last id that a stream has given, also after all its entries were deleted. A stream that does not exist has given none.
local function last_id(stream)
  if call('EXISTS', stream) == 0 then return '0-0' end
  local info = call('XINFO', 'STREAM', stream)
  for at = 1, #info, 2 do
    if info[at] == 'last-generated-id' then return info[at + 1] end
  end
end
