//! The entry for a change of the state of a quota, in a store that is written in Rust. Twin: the outbox of the Redis scripts.

use super::{AccountKey, EntryId, EntryKind, OutboxEntry, QuotaChange};
use crate::algorithm::holds::{self, HoldStatus};
use crate::algorithm::{self, HoldOp, Op, State};
use crate::key::Key;
use crate::{Limit, Timestamp};

/// The entry for what `ops` make of the state `before`, with an empty id. `None` if nothing is consumed, given back or reserved.
pub(crate) fn entry_for_change(
    key: &Key<'_>,
    limit: &Limit,
    before: Option<&State>,
    ops: &[Op],
    now: Timestamp,
) -> Option<OutboxEntry> {
    let (Limit::Quota(quota), Some(op)) = (limit, ops.last()) else { return None };
    let mut after = before.cloned();
    for op in ops {
        algorithm::apply(&mut after, limit, now, *op);
    }
    let after = after.as_ref();
    let [used_before, used_after] = [before, after].map(|state| state.and_then(State::quota));
    let current = quota.normalize(used_before, now).0;
    let QuotaChange { period, amount, late_amount } = match used_after {
        // A denial in debt writes the same state again, which may be of an earlier period, or have a debt that the limit cuts.
        Some(after) if after.index >= current.index && used_before != Some(after) => {
            QuotaChange::between(current, after)
        }
        _ => QuotaChange { period: current.index, amount: 0, late_amount: 0 },
    };
    let is_open = |state, owner| matches!(holds::status(state, limit, now, owner), HoldStatus::Open(_));
    // Whose hold is made or has ended, the units, and when it runs out, or has ended if that is remembered.
    let (owner, held, expires_at) = match *op {
        Op::Hold(HoldOp::Reserve { take, .. }) if !is_open(before, take.owner) && is_open(after, take.owner) => {
            (take.owner, take.total(), holds::last_end(after))
        }
        Op::Hold(HoldOp::Commit { position, .. } | HoldOp::Release { position })
            if is_open(before, position.index()) =>
        {
            (position.index(), 0, if position.is_keyed_hold() { now.as_micros() } else { 0 })
        }
        _ => (0, 0, 0),
    };
    if amount == 0 && late_amount == 0 && owner == 0 {
        return None;
    }
    let kind = match op {
        Op::Hold(HoldOp::Reserve { .. }) => EntryKind::Reserve,
        Op::Hold(HoldOp::Commit { .. }) => EntryKind::Commit,
        Op::Refund { .. } | Op::Hold(HoldOp::Release { .. }) => EntryKind::Release,
        _ => EntryKind::Consume,
    };
    let AccountKey { partition, stem, subject } = AccountKey::from_key(key);
    Some(OutboxEntry {
        id: EntryId { generation: 0, partition, millis: 0, sequence: 0 },
        kind,
        at: now,
        stem,
        subject,
        period,
        amount,
        late_amount,
        held,
        owner,
        expires_at: Timestamp::from_micros(expires_at),
        hard_limit: quota.hard_limit(),
    })
}
