//! `Store`: keeps the state of limits, owns the time, and decides a whole plan in one atomic step.

mod adjustment;

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

pub use adjustment::Adjustment;
pub(crate) use adjustment::{hold_release_op, is_bundled};

use crate::Timestamp;
use crate::algorithm::holds::{HoldEnding, HoldsSummary};
use crate::key::Key;
use crate::ledger::EntryId;
use crate::spi::{CheckVerdict, Plan, Verdict};

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

    /// Renews and releases slots of concurrency limits: [`Op::Renew`](crate::spi::algorithm::Op::Renew) and [`Op::Refund`](crate::spi::algorithm::Op::Refund), each by itself. Returns for each whether the
    /// slot was held; then it was renewed or released. A slot that was not held was released before, has run out, or was given up because
    /// the limit was lowered. Updates that may have been applied can be repeated.
    fn update_slots(&self, updates: &[Adjustment<'_>]) -> impl Future<Output = Result<Vec<bool>, StoreError>> + Send {
        let _ = updates;
        async { Err(StoreError::new(StoreErrorKind::Unexpected, "this store keeps no leases")) }
    }

    /// Commits and releases holds of reservations, and releases their slots: [`Op::Hold`](crate::spi::algorithm::Op::Hold) and [`Op::Refund`](crate::spi::algorithm::Op::Refund), each by itself. Returns for
    /// each what became of it. Endings that may have been applied can be repeated.
    fn end_holds(
        &self,
        endings: &[Adjustment<'_>],
    ) -> impl Future<Output = Result<Vec<HoldEnding>, StoreError>> + Send {
        let _ = endings;
        async { Err(no_reservations()) }
    }

    /// [`adjust`](Self::adjust), and tells the entries that were written for the ledger. A store that does not tell them returns none.
    fn adjust_recorded(
        &self,
        adjustments: &[Adjustment<'_>],
    ) -> impl Future<Output = Result<Vec<EntryId>, StoreError>> + Send {
        async { self.adjust(adjustments).await.map(|()| Vec::new()) }
    }

    /// [`end_holds`](Self::end_holds), and tells the entries that were written for the ledger. A store that does not tell them returns none.
    fn end_holds_recorded(
        &self,
        endings: &[Adjustment<'_>],
    ) -> impl Future<Output = Result<(Vec<HoldEnding>, Vec<EntryId>), StoreError>> + Send {
        async { self.end_holds(endings).await.map(|ended| (ended, Vec::new())) }
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

    /// The [generation](crate::spi::EntryId::generation) under which the store records the changes of quotas with a ledger in this partition, if it is known.
    fn ledger_generation(&self, partition: u16) -> Option<u64> {
        let _ = partition;
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

    fn adjust_recorded(
        &self,
        adjustments: &[Adjustment<'_>],
    ) -> impl Future<Output = Result<Vec<EntryId>, StoreError>> + Send {
        S::adjust_recorded(self, adjustments)
    }

    fn end_holds_recorded(
        &self,
        endings: &[Adjustment<'_>],
    ) -> impl Future<Output = Result<(Vec<HoldEnding>, Vec<EntryId>), StoreError>> + Send {
        S::end_holds_recorded(self, endings)
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

    fn ledger_generation(&self, partition: u16) -> Option<u64> {
        S::ledger_generation(self, partition)
    }

    fn known_denial(&self, plan: &Plan<'_>) -> Option<KnownDenial> {
        S::known_denial(self, plan)
    }
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
    /// The store has lost the states of quotas with a ledger, which are being rebuilt from it. Nothing was changed.
    Rebuilding,
    /// Authentication failed, or a permission is missing.
    Denied,
    /// The value under a key was not written by this version. It was not changed.
    Unreadable,
    /// The version of the store is too old.
    Unsupported,
    /// An invalid response or call: a defect.
    Unexpected,
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
        matches!(
            self.kind,
            StoreErrorKind::Unavailable
                | StoreErrorKind::Overloaded
                | StoreErrorKind::Refused
                | StoreErrorKind::Rebuilding
        )
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
            Self::Rebuilding => "rebuilding",
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
