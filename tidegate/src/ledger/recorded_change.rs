//! The entry for a change of the state of a quota, in a store that is written in Rust. Twin: the outbox of the Redis scripts.

use super::{AccountKey, EntryId, EntryKind, OutboxEntry, QuotaChange};
use crate::algorithm::holds::HoldEvent;
use crate::algorithm::{Change, HoldOp, Op, State, quota};
use crate::key::Key;
use crate::{Limit, Timestamp};

/// The entry for `change` of the state `before` by `op`, with an empty id. `None` if nothing was consumed, given back or reserved.
pub(crate) fn entry_for_change(
    key: &Key<'_>,
    limit: &Limit,
    before: Option<&State>,
    change: &Change,
    op: Op,
    now: Timestamp,
) -> Option<OutboxEntry> {
    let Limit::Quota(limit) = limit else { return None };
    let before = before.and_then(State::quota);
    let current = limit.normalize(before, now).0;
    let QuotaChange { period, amount, late_amount } = match change.quota() {
        // A denial in debt writes the same state again, which may be of an earlier period, or have a debt that the limit cuts.
        Some(after) if after.index >= current.index && before != Some(after) => {
            quota::change_between(before, after, limit, now)
        }
        _ => QuotaChange { period: current.index, amount: 0, late_amount: 0 },
    };
    let event = change.hold();
    if amount == 0 && late_amount == 0 && event.is_none() {
        return None;
    }
    let (owner, held, expires_at) = match event {
        Some(HoldEvent::Made { owner, units, expires_at }) => (owner, units, expires_at),
        Some(HoldEvent::Ended { owner, remembered }) => (owner, 0, if remembered { now.as_micros() } else { 0 }),
        None => (0, 0, 0),
    };
    let kind = match (op, event) {
        (_, Some(HoldEvent::Made { .. })) => EntryKind::Reserve,
        (Op::Hold(HoldOp::Commit { .. }), _) => EntryKind::Commit,
        (Op::Refund { .. } | Op::Hold(HoldOp::Release { .. }), _) => EntryKind::Release,
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
        hard_limit: limit.hard_limit(),
    })
}
