-- What can be asked of a limit. Every limit is one function, the twin of the Rust file of its name:
--   limit(state, now, op, units, …)  →  admitted, value, expiry, view
--     state    the value found, or false        now     microseconds since the epoch
--     units    how many times the cost          …       cost and place of the op, then the parameters of the limit
--     admitted nil if the value is unreadable   value   what to write, or nil
--     expiry   microseconds, when value stops to matter
--     view     what the reply tells instead of state, if that is large
-- Numbers are integers below 2^53; '%d' prints them exactly, where tostring and .. would keep 14 digits.
local TAKE, ROOM, CHARGE, REFUND = 1, 2, 3, 4
local MARGIN = 2000000
local TOO_LARGE = 9007199254740992 -- 2^53: no number in a value reaches it, or we did not write it
