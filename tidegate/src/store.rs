//! `Store`: keeps the state of limits, owns the time, and decides a whole plan in one atomic step.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::holds::{HoldEnding, HoldsSummary};
use crate::algorithm::{HoldOp, Op, TakePosition};
use crate::key::Key;
use crate::limit::MAX_AMOUNT;
use crate::plan::{Check, Gate, LeaseOwner};
use crate::spi::{CheckVerdict, Plan, Verdict};
use crate::{Limit, Network, Timestamp};

/// Keeps the state of limits and decides plans.
///
/// A denial is a value. An `Err` means that the store failed; only then does [`OnFailure`](crate::OnFailure) apply.
pub trait Store: Send + Sync {
    /// Decides `plan` in one atomic step, and consumes what it admits unless the plan is a [peek](Plan::is_peek).
    fn decide(&self, plan: &Plan<'_>) -> impl Future<Output = Result<Verdict, StoreError>> + Send;

    /// Applies charges and refunds, each by itself, except those that are [bundled](Adjustment::bundled).
    fn adjust(&self, adjustments: &[Adjustment<'_>]) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Starts to apply charges, refunds and ends of holds without waiting for the result, for a future that is being dropped. A failed
    /// refund is lost; the units stay consumed. A failed release of a slot may be repeated until its lease is over, and a failed end of a
    /// hold until the hold runs out.
    fn adjust_soon(&self, adjustments: &[Adjustment<'_>]);

    /// Renews and releases slots of concurrency limits: [`Op::Renew`] and [`Op::Refund`], each by itself. Returns for each whether the
    /// slot was held; then it was renewed or released. A slot that was not held was released before, has run out, or was given up because
    /// the limit was lowered. Updates that may have been applied can be repeated.
    fn update_slots(&self, updates: &[Adjustment<'_>]) -> impl Future<Output = Result<Vec<bool>, StoreError>> + Send {
        let _ = updates;
        async { Err(StoreError::new(StoreErrorKind::Unexpected, "this store keeps no leases")) }
    }

    /// Commits and releases holds of reservations, and releases their slots: [`Op::Hold`] and [`Op::Refund`], each by itself. Returns for
    /// each what became of it. Endings that may have been applied can be repeated.
    fn end_holds(
        &self,
        endings: &[Adjustment<'_>],
    ) -> impl Future<Output = Result<Vec<HoldEnding>, StoreError>> + Send {
        let _ = endings;
        async { Err(no_reservations()) }
    }

    /// The open holds under the key of each check of `plan`.
    fn outstanding(&self, plan: &Plan<'_>) -> impl Future<Output = Result<OutstandingHolds, StoreError>> + Send {
        let _ = plan;
        async { Err(no_reservations()) }
    }

    /// Deletes the state of these keys.
    fn forget(&self, keys: &[Key<'_>]) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Checks that the store responds.
    fn ping(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// The number of instances that share the store, if it counts them. While the store fails, it is the last known number.
    fn instances(&self) -> Option<u32> {
        None
    }

    /// A check of `plan` that denies the request, known from an earlier denial without a call. [`Limiter`](crate::Limiter) asks
    /// for it before it calls [`decide`](Self::decide), and again if that fails; never for a peek.
    #[inline(always)]
    fn known_denial(&self, plan: &Plan<'_>) -> Option<KnownDenial> {
        let _ = plan;
        None
    }
}

fn no_reservations() -> StoreError {
    StoreError::new(StoreErrorKind::Unexpected, "this store keeps no reservations")
}

/// The open holds under the keys of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutstandingHolds {
    /// The time of the store.
    pub now: Timestamp,
    /// One for each check.
    pub checks: Vec<HoldsSummary>,
}

/// A store shared by several limiters, such as those before and after a change of rules.
impl<S: Store> Store for Arc<S> {
    fn decide(&self, plan: &Plan<'_>) -> impl Future<Output = Result<Verdict, StoreError>> + Send {
        S::decide(self, plan)
    }

    fn adjust(&self, adjustments: &[Adjustment<'_>]) -> impl Future<Output = Result<(), StoreError>> + Send {
        S::adjust(self, adjustments)
    }

    fn adjust_soon(&self, adjustments: &[Adjustment<'_>]) {
        S::adjust_soon(self, adjustments);
    }

    fn update_slots(&self, updates: &[Adjustment<'_>]) -> impl Future<Output = Result<Vec<bool>, StoreError>> + Send {
        S::update_slots(self, updates)
    }

    fn end_holds(
        &self,
        endings: &[Adjustment<'_>],
    ) -> impl Future<Output = Result<Vec<HoldEnding>, StoreError>> + Send {
        S::end_holds(self, endings)
    }

    fn outstanding(&self, plan: &Plan<'_>) -> impl Future<Output = Result<OutstandingHolds, StoreError>> + Send {
        S::outstanding(self, plan)
    }

    fn forget(&self, keys: &[Key<'_>]) -> impl Future<Output = Result<(), StoreError>> + Send {
        S::forget(self, keys)
    }

    fn ping(&self) -> impl Future<Output = Result<(), StoreError>> + Send {
        S::ping(self)
    }

    fn instances(&self) -> Option<u32> {
        S::instances(self)
    }

    fn known_denial(&self, plan: &Plan<'_>) -> Option<KnownDenial> {
        S::known_denial(self, plan)
    }
}

/// A charge, a refund, a renewal or the end of a hold for one key.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Adjustment<'r> {
    /// The key of the state.
    pub key: Key<'r>,
    /// The limit.
    pub limit: &'r Limit,
    /// [`Op::Charge`] or [`Op::Refund`] to [adjust](Store::adjust), [`Op::Renew`] or [`Op::Refund`] to
    /// [update slots](Store::update_slots), a commit or release to [end holds](Store::end_holds). A store rejects [`Op::Take`] here.
    pub op: Op,
    /// The limit and its rule.
    pub gate: &'r Gate,
    /// Whether the subject is unauthenticated.
    pub anonymous: bool,
    /// The network of the subject, if it has an address.
    pub network: Option<Network>,
    /// Whether it belongs to the refund of a whole request. If one of the bundled refunds of a call is a place in the queue of a leaky
    /// bucket with others behind it, that place stays taken, and so does everything else that is bundled: otherwise a
    /// client that leaves the queue would pay nothing for a place that nobody else can use.
    pub bundled: bool,
}

/// A denial that a store knows without a call, because it denied the same request a moment ago and the limit has not recovered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownDenial {
    /// The index of the check in the plan.
    pub check: usize,
    /// The result of the check, by its state at `decided_at`.
    pub verdict: CheckVerdict,
    /// The time of the denial, by the clock of the store.
    pub decided_at: Timestamp,
}

/// A failure of a store: its kind, a message, whether the operation may have been applied, and its cause.
#[derive(Clone, Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    message: Cow<'static, str>,
    possibly_applied: bool,
    crowded: bool,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

/// The kind of a [`StoreError`]. Programs should use it; the message may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The store is unreachable, closed the connection, or did not respond in time.
    Unavailable,
    /// This instance is overloaded: the store answers, but too many plans wait for it, so this one was not sent.
    Overloaded,
    /// The store responds but cannot serve now: it is loading, out of memory, busy, demoted or without its replicas.
    Refused,
    /// Authentication failed, or a permission is missing.
    Denied,
    /// The value under a key was not written by this version. It was not changed.
    Unreadable,
    /// The version of the store is too old.
    Unsupported,
    /// An invalid response or call: a defect.
    Unexpected,
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
        Self { key: *check.key(), limit: gate.limit(), op, gate, anonymous, network, bundled: false }
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
            Some(terms) if plan.is_hold(check) => {
                let undone = terms.undone().position();
                let undone = position.overflow_bucket().map_or(undone, |number| undone.in_overflow_bucket(number));
                Self::hold_release(check, undone)
            }
            _ => Self::bundled_refund(check, check.cost().saturating_mul(units), position),
        }
    }

    /// The release of the hold at `position` under `check`, or of its slot.
    pub(crate) fn hold_release(check: &Check<'r>, position: TakePosition) -> Self {
        Self::new(check, hold_release_op(check.gate().limit(), position)).at_position(position)
    }

    /// Whether it ends a hold.
    pub const fn is_hold_ending(&self) -> bool {
        matches!(self.op, Op::Hold(HoldOp::Commit { .. } | HoldOp::Release { .. }))
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

    /// Rejects adjustments of which one neither ends a hold nor releases a slot.
    pub fn require_endings(adjustments: &[Self]) -> Result<(), StoreError> {
        if adjustments.iter().all(|one| one.is_hold_ending() || one.is_release()) {
            return Ok(());
        }
        let message = "only holds can be committed, and holds and slots released";
        Err(StoreError::new(StoreErrorKind::Unexpected, message))
    }

    /// Rejects adjustments of which one is a take, a renewal or a reservation.
    pub fn require_changes(adjustments: &[Self]) -> Result<(), StoreError> {
        let is_change = |one: &Self| matches!(one.op, Op::Charge { .. } | Op::Refund { .. }) || one.is_hold_ending();
        if adjustments.iter().all(is_change) {
            return Ok(());
        }
        let message = "an adjustment must be a charge, a refund or the end of a hold, not a take or a renewal";
        Err(StoreError::new(StoreErrorKind::Unexpected, message))
    }

    /// Rejects adjustments of which one is not the renewal or the release of a slot.
    pub fn require_slot_updates(adjustments: &[Self]) -> Result<(), StoreError> {
        let is_update = |one: &Self| matches!(one.op, Op::Renew { .. } | Op::Refund { .. }) && one.limit.is_held();
        if adjustments.iter().all(is_update) {
            return Ok(());
        }
        let message = "only slots of concurrency limits can be renewed and released";
        Err(StoreError::new(StoreErrorKind::Unexpected, message))
    }

    /// Whether it releases a slot of a concurrency limit.
    pub const fn is_release(&self) -> bool {
        self.limit.is_held() && matches!(self.op, Op::Refund { .. })
    }

    /// Whether it is a place in a queue that may have to stay taken, together with everything that is bundled.
    pub const fn is_bundled_place(&self) -> bool {
        self.bundled && is_queue(self.limit) && matches!(self.op, Op::Refund { .. })
    }

    /// How long the store keeps the state of the subject after its last request, if that is bounded.
    pub const fn forget_after(&self) -> Option<Duration> {
        if self.anonymous { self.gate.forget_after() } else { None }
    }

    /// For a slot or hold in an overflow bucket, the same adjustment there. All others are unchanged: nothing else goes back to a bucket that
    /// others share.
    pub(crate) fn at_position(self, position: TakePosition) -> Self {
        match position.overflow_bucket() {
            // The bucket is kept as long as it counts, so it does not expire like the state of an unauthenticated subject.
            Some(number) if self.limit.is_held() || self.is_hold_ending() => {
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
    !(limit.is_held() || is_shadow && is_queue(limit))
}

/// Releases what a reservation holds under `limit`.
pub(crate) const fn hold_release_op(limit: &Limit, position: TakePosition) -> Op {
    match limit {
        Limit::Concurrency(_) => Op::Refund { cost: MAX_AMOUNT, position },
        _ => Op::Hold(HoldOp::Release { position }),
    }
}

/// Whether requests wait in the queue of `limit`.
const fn is_queue(limit: &Limit) -> bool {
    matches!(limit, Limit::LeakyBucket(_))
}

impl StoreError {
    /// An error after which the operation is known not to be applied.
    pub fn new(kind: StoreErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, message: message.into(), possibly_applied: false, crowded: false, source: None }
    }

    /// Marks the error of an operation that may have been applied.
    pub fn with_possibly_applied(mut self) -> Self {
        self.possibly_applied = true;
        self
    }

    /// Marks an [overload](StoreErrorKind::Overloaded) in which the subject itself had other plans waiting. The request is refused
    /// then, unless its rules are [open](crate::OnOverload::Open).
    pub fn with_crowded(mut self) -> Self {
        self.crowded = true;
        self
    }

    /// Sets the cause. It must not contain a password, a key or a subject.
    pub fn with_source(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// The kind of failure.
    pub const fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether the same call may succeed later without intervention.
    pub const fn is_transient(&self) -> bool {
        matches!(self.kind, StoreErrorKind::Unavailable | StoreErrorKind::Overloaded | StoreErrorKind::Refused)
    }

    /// Whether the subject had other plans waiting when this instance was overloaded.
    pub const fn is_crowded(&self) -> bool {
        self.crowded
    }

    /// Whether the operation may have been applied. It must not be repeated then, or it could count twice.
    pub const fn is_possibly_applied(&self) -> bool {
        self.possibly_applied
    }
}

impl StoreErrorKind {
    /// The name in responses and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::Overloaded => "overloaded",
            Self::Refused => "refused",
            Self::Denied => "denied",
            Self::Unreadable => "unreadable",
            Self::Unsupported => "unsupported",
            Self::Unexpected => "unexpected",
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}
