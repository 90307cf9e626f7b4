//! `Store`: decides a whole plan in one atomic step. It owns the state and the time.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use crate::Limit;
use crate::algorithm::Op;
use crate::key::Key;
use crate::plan::{Check, Gate};
use crate::spi::{Plan, Verdict};

/// Keeps the state of limits and decides plans on it.
///
/// A denial is a value; an `Err` means that the store itself failed, and only then may a failure policy speak.
pub trait Store: Send + Sync {
    /// Decides `plan` in one atomic step, and consumes what it admits unless the plan is a [peek](Plan::is_peek).
    fn decide(&self, plan: &Plan<'_>) -> impl Future<Output = Result<Verdict, StoreError>> + Send;

    /// Carries out charges and refunds.
    fn adjust(&self, adjustments: &[Adjustment<'_>]) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Starts to carry out charges and refunds without waiting for the end: for a future that is being dropped. What
    /// fails is lost, which leaves the limit stricter than it could be.
    fn adjust_soon(&self, adjustments: &[Adjustment<'_>]);

    /// Forgets everything about these keys.
    fn forget(&self, keys: &[Key<'_>]) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Checks that the servers of the store respond.
    fn ping(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// How many instances share it, as far as it knows: it goes by what it saw last, while it cannot be reached.
    fn instances(&self) -> Option<u32> {
        None
    }
}

/// A store that several limiters share, such as those before and after a change of rules.
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

    fn forget(&self, keys: &[Key<'_>]) -> impl Future<Output = Result<(), StoreError>> + Send {
        S::forget(self, keys)
    }

    fn ping(&self) -> impl Future<Output = Result<(), StoreError>> + Send {
        S::ping(self)
    }

    fn instances(&self) -> Option<u32> {
        S::instances(self)
    }
}

/// A charge or a refund for one key.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Adjustment<'r> {
    /// Where the state is.
    pub key: Key<'r>,
    /// What limits it.
    pub limit: &'r Limit,
    /// [`Op::Charge`] or [`Op::Refund`]; a take is decided, not adjusted, and is refused here.
    pub op: Op,
    /// The gate if the subject is unauthenticated; its [bounds](Gate::anonymous) apply then.
    pub anonymous: Option<&'r Gate>,
}

/// A store that failed: what happened, whether trying later helps, and whether it may have been applied all the same.
#[derive(Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    message: Cow<'static, str>,
    possibly_applied: bool,
}

/// What kind of failure it was. The message of an error is for people and may change; this is for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The store cannot be reached, closed the connection, or did not answer in time.
    Unavailable,
    /// So many calls wait for the store already that this one was not sent.
    Overloaded,
    /// The store answers, but cannot serve now: it is loading, out of memory, busy, demoted or without its replicas.
    Refused,
    /// The store does not let us in: a password or a permission is missing or wrong.
    Denied,
    /// Something that is not ours, or of a newer version, stands where a state should be. It was left as it is.
    Unreadable,
    /// The store is too old.
    Unsupported,
    /// An answer or a call that makes no sense: a defect.
    Unexpected,
}

impl<'r> Adjustment<'r> {
    /// Charges what `check` costs.
    pub fn charge(check: &Check<'r>) -> Self {
        Self::new(check, Op::Charge { cost: check.cost() })
    }

    /// Carries out `op` where the state of `check` is.
    pub fn new(check: &Check<'r>, op: Op) -> Self {
        let gate = check.gate();
        Self { key: *check.key(), limit: gate.limit(), op, anonymous: check.is_anonymous().then_some(gate) }
    }

    /// Sets the key, such as that of an overflow bucket.
    pub const fn with_key(mut self, key: Key<'r>) -> Self {
        self.key = key;
        self
    }
}

impl StoreError {
    /// An error that left the store as it was.
    pub fn new(kind: StoreErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, message: message.into(), possibly_applied: false }
    }

    /// The same error, when nobody knows whether the store carried out what it was told.
    pub fn possibly_applied(mut self) -> Self {
        self.possibly_applied = true;
        self
    }

    /// What kind of failure it was.
    pub const fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether the same call may succeed later without anybody changing anything.
    pub const fn is_transient(&self) -> bool {
        matches!(self.kind, StoreErrorKind::Unavailable | StoreErrorKind::Overloaded | StoreErrorKind::Refused)
    }

    /// Whether the decision may have been carried out: then it must not be sent again, or it would count twice.
    pub const fn is_possibly_applied(&self) -> bool {
        self.possibly_applied
    }
}

impl StoreErrorKind {
    /// Its name in answers and metrics.
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

impl Error for StoreError {}
