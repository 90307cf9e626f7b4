//! `Adjustment`: a charge, a refund, a renewal or the end of a hold for one key.

use std::time::Duration;

use super::{StoreError, StoreErrorKind};
use crate::algorithm::{HoldOp, Op, TakePosition};
use crate::key::Key;
use crate::limit::MAX_AMOUNT;
use crate::plan::{Check, Gate, LeaseOwner, Plan, ReservationTerms};
use crate::{Limit, Network};

/// A charge, a refund, a renewal or the end of a hold for one key.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Adjustment<'r> {
    /// The key of the state.
    pub key: Key<'r>,
    /// The limit.
    pub limit: &'r Limit,
    /// A charge, a refund, the renewal of a slot, or the commit or release of a hold. A store rejects a take or a reserve here.
    pub op: Op,
    /// The limit and its rule.
    pub gate: &'r Gate,
    /// Whether the subject is anonymous.
    pub anonymous: bool,
    /// The network of the subject, if it has an address.
    pub network: Option<Network>,
    /// Whether it belongs to the refund of a whole request. If one of the bundled refunds of a call is a place in the queue of a leaky
    /// bucket with others behind it, that place stays taken, and so does everything else that is bundled: otherwise a
    /// client that leaves the queue would pay nothing for a place that nobody else can use.
    pub bundled: bool,
    /// Whether the state is in the memory of this instance, under its share of the limit.
    pub(crate) share: bool,
}

impl<'r> Adjustment<'r> {
    /// A charge of the cost of `check`.
    pub fn charge(check: &Check<'r>) -> Self {
        Self::new(check, Op::Charge { cost: check.cost(), position: TakePosition::default() })
    }

    /// `op` on the state of `check`.
    pub fn new(check: &Check<'r>, op: Op) -> Self {
        let gate = check.gate();
        let (anonymous, network) = (check.is_anonymous(), check.network());
        Self { key: *check.key(), limit: gate.limit(), op, gate, anonymous, network, bundled: false, share: false }
    }

    /// The refund of what `check` consumed, as a part of the refund of its request.
    pub fn bundled_refund(check: &Check<'r>, cost: u64, position: TakePosition) -> Self {
        let bundled = is_bundled(check.gate().limit(), check.is_shadow());
        Self { bundled, ..Self::new(check, Op::Refund { cost, position }) }.at_position(position)
    }

    /// The release of the slot that `owner` holds under `check`, with its whole weight.
    pub fn release(check: &Check<'r>, owner: LeaseOwner) -> Self {
        Self::new(check, Op::Refund { cost: MAX_AMOUNT, position: TakePosition::from_owner(owner) })
    }

    /// The renewal of the slot that `owner` holds under `check`. It is not taken again if it is absent.
    pub fn renewal(check: &Check<'r>, owner: LeaseOwner) -> Self {
        Self::new(check, Op::Renew { position: TakePosition::from_owner(owner), weight: 0 })
    }

    /// Gives back what `check` of a plan that does not pass has taken for `units`, at `position`: a refund as a part of that of the
    /// request, or the release of a hold, as if it had never been made.
    pub fn undo(plan: &Plan<'_>, check: &Check<'r>, units: u64, position: TakePosition) -> Self {
        match plan.reservation() {
            Some(terms) if plan.is_hold(check) => Self::hold_release(check, undone(terms, position)),
            _ => Self::bundled_refund(check, check.cost().saturating_mul(units), position),
        }
    }

    /// Commits what `check` of `plan` has just held at `position`, with the cost that it held, as if it had been a take. `None` if it
    /// holds nothing.
    pub(crate) fn commit_now(plan: &Plan<'_>, check: &Check<'r>, position: TakePosition) -> Option<Self> {
        let position = undone(plan.reservation()?, position);
        let commit = Op::Hold(HoldOp::Commit { cost: check.cost(), position });
        Some(Self::new(check, commit).at_position(position))
    }

    /// The release of the hold at `position` under `check`, or of its slot.
    pub(crate) fn hold_release(check: &Check<'r>, position: TakePosition) -> Self {
        Self::new(check, hold_release_op(check.gate().limit(), position)).at_position(position)
    }

    /// Whether it gives back what was taken from a quota with a ledger in another generation than this one. The store may have lost that take
    /// before it was in the ledger, so nothing goes back.
    pub fn is_of_lost_generation(&self, generation: u64) -> bool {
        let is_lost = |position: TakePosition| position.generation() != 0 && position.generation() != generation;
        self.gate.ledger().is_some() && matches!(self.op, Op::Refund { position, .. } if is_lost(position))
    }

    /// Whether it ends a hold.
    pub const fn is_hold_ending(&self) -> bool {
        matches!(self.op, Op::Hold(HoldOp::Commit { .. } | HoldOp::Release { .. }))
    }

    /// Whether it commits a hold whose end is remembered.
    pub(crate) const fn is_keyed_commit(&self) -> bool {
        matches!(self.op, Op::Hold(HoldOp::Commit { position, .. }) if position.is_keyed_hold())
    }

    /// The charge in place of a commit whose hold is gone, counted now. `None` if it is no commit, or one in an overflow bucket: others share
    /// that.
    pub(crate) fn charge_without_hold(&self) -> Option<Self> {
        match self.op {
            Op::Hold(HoldOp::Commit { cost, position }) if position.overflow_bucket().is_none() && cost > 0 => {
                Some(Self { op: Op::Charge { cost, position: TakePosition::default() }, ..*self })
            }
            _ => None,
        }
    }

    /// How long the hold that it ends lasts, at the longest. `None` if it ends none.
    pub fn hold_duration(&self) -> Option<Duration> {
        match self.op {
            Op::Hold(HoldOp::Commit { position, .. } | HoldOp::Release { position }) => {
                Some(Duration::from_micros(position.hold_ttl_micros()))
            }
            _ => None,
        }
    }

    /// Rejects adjustments of which one is a take, makes a hold, or renews what is no slot.
    pub fn require_valid(adjustments: &[Self]) -> Result<(), StoreError> {
        let is_valid = |one: &Self| match one.op {
            Op::Charge { .. } | Op::Refund { .. } => true,
            Op::Renew { .. } => one.limit.has_slots(),
            _ => one.is_hold_ending(),
        };
        if adjustments.iter().all(is_valid) {
            return Ok(());
        }
        let message = "an adjustment must be a charge, a refund, the renewal of a slot or the end of a hold";
        Err(StoreError::new(StoreErrorKind::Unexpected, message))
    }

    /// Whether it releases a slot of a concurrency limit.
    pub const fn is_release(&self) -> bool {
        self.limit.has_slots() && matches!(self.op, Op::Refund { .. })
    }

    /// Whether it is a place in a queue that may have to stay taken, together with everything that is bundled.
    pub const fn is_bundled_place(&self) -> bool {
        self.bundled && is_queue(self.limit) && matches!(self.op, Op::Refund { .. })
    }

    /// How long the store keeps the state of the subject after its last request, if that is bounded.
    pub fn forget_after(&self) -> Option<Duration> {
        if self.anonymous { self.gate.forget_after() } else { None }
    }

    /// For a slot or hold in an overflow bucket, the same adjustment there. All others are unchanged: nothing else goes back to a bucket that
    /// others share.
    pub(crate) fn at_position(self, position: TakePosition) -> Self {
        match position.overflow_bucket() {
            // The bucket is kept as long as it counts, so it does not expire like the state of an anonymous subject.
            Some(number) if self.limit.has_slots() || self.is_hold_ending() => {
                Self { key: self.key.overflow(number), anonymous: false, network: None, ..self }
            }
            _ => self,
        }
    }

    /// Sets the key, such as that of an overflow bucket.
    pub const fn with_key(mut self, key: Key<'r>) -> Self {
        self.key = key;
        self
    }
}

/// Whether a refund under `limit` belongs to that of its request. A shadow check affects no other, and a slot is not a price that was
/// paid: it is free as soon as its holder is gone.
pub(crate) const fn is_bundled(limit: &Limit, is_shadow: bool) -> bool {
    !(limit.has_slots() || is_shadow && is_queue(limit))
}

/// The position of a hold of `terms` that was made at `position`, whose end is not remembered.
fn undone(terms: &ReservationTerms, position: TakePosition) -> TakePosition {
    let undone = terms.undone().position();
    position.overflow_bucket().map_or(undone, |number| undone.in_overflow_bucket(number))
}

/// Releases what a reservation holds under `limit`.
const fn hold_release_op(limit: &Limit, position: TakePosition) -> Op {
    match limit {
        Limit::Concurrency(_) => Op::Refund { cost: MAX_AMOUNT, position },
        _ => Op::Hold(HoldOp::Release { position }),
    }
}

/// Whether requests wait in the queue of `limit`.
const fn is_queue(limit: &Limit) -> bool {
    matches!(limit, Limit::LeakyBucket(_))
}
