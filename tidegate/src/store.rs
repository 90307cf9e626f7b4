//! `Store`: keeps the state of limits, owns the time, and decides a whole plan in one atomic step.

mod adjustment;
mod adjustment_results;

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

pub use adjustment::Adjustment;
pub(crate) use adjustment::is_bundled;
pub use adjustment_results::{AdjustmentResult, AdjustmentResults};

use crate::Timestamp;
use crate::algorithm::holds::HoldsSummary;
use crate::key::Key;
use crate::spi::{CheckVerdict, Plan, Verdict};

/// Keeps the state of limits and decides plans.
///
/// A denial is a value. An `Err` means that the store failed; only then does [`OnFailure`](crate::OnFailure) apply.
pub trait Store: Send + Sync {
    /// Decides `plan` in one atomic step, and consumes what it admits unless the plan is a [peek](Plan::is_peek).
    fn decide(&self, plan: &Plan<'_>) -> impl Future<Output = Result<Verdict, StoreError>> + Send;

    /// Applies charges, refunds, renewals and ends of holds, each by itself, except those that are [bundled](Adjustment::bundled). Never
    /// denied. Renewals, releases of slots and ends of holds that may have been applied can be repeated; charges and refunds cannot.
    fn apply(&self, adjustments: &[Adjustment<'_>]) -> impl Future<Output = AdjustmentResults> + Send;

    /// [Applies](Self::apply) in the background, for a future that is being dropped. A failed refund is lost; the units stay consumed. A
    /// failed release of a slot may be repeated until its lease is over, and a failed end of a hold until the hold runs out.
    fn spawn_apply(&self, adjustments: &[Adjustment<'_>]);

    /// The open holds under the key of each check of `plan`.
    fn outstanding(&self, plan: &Plan<'_>) -> impl Future<Output = Result<OutstandingHolds, StoreError>> + Send {
        let _ = plan;
        async { Err(StoreError::new(StoreErrorKind::Unexpected, "this store keeps no reservations")) }
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

    fn apply(&self, adjustments: &[Adjustment<'_>]) -> impl Future<Output = AdjustmentResults> + Send {
        S::apply(self, adjustments)
    }

    fn spawn_apply(&self, adjustments: &[Adjustment<'_>]) {
        S::spawn_apply(self, adjustments);
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
    /// This instance does not fit the ledger, such as by its secret. Rules with a ledger are [closed](crate::OnFailure::Closed) then,
    /// whatever their policy: entries would be billed to the wrong accounts.
    Mismatch,
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
    /// then, unless its rules are [open](crate::rules::OnOverload::Open).
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
            Self::Mismatch => "mismatch",
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
