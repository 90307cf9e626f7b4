-- The last id that a stream has given, also after all its entries were deleted, and the last of those that were deleted. A stream that does
-- not exist has given none.
local function last_id(stream)
  if call('EXISTS', stream) == 0 then return '0-0', '0-0' end
  local info, written, deleted = call('XINFO', 'STREAM', stream), nil, nil
  for at = 1, #info, 2 do
    if info[at] == 'last-generated-id' then written = info[at + 1] end
    if info[at] == 'max-deleted-entry-id' then deleted = info[at + 1] end
  end
  return written, deleted
end
