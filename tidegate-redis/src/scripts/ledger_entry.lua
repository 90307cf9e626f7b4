-- An entry for a change of the quota under `key`, as the outbox keeps it: ten packed doubles, and the part of the key after the partition.
-- `kind` is that of EntryKind: 1 consume, 2 reserve, 3 commit, 4 release.
local function ledger_entry(key, kind, period, consumed, late, held, owner, ends, hard, generation)
  return struct.pack('<dddddddddd', kind, now, period, consumed, late, held, owner, ends, hard, generation)
    .. string.sub(key, string.find(key, '}', 1, true) + 1)
end
