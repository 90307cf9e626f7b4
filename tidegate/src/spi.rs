//! For authors of stores and front ends; an application that checks requests does not need this module.
//!
//! | for | types |
//! |---|---|
//! | a store | [`Store`], [`Namespace`], [`Verdict`], [`CheckVerdict`], [`KnownDenial`], [`Adjustment`], [`AdjustmentResults`], the functions in [`algorithm`] |
//! | tests of what a program does without its store | [`FailingStore`], [`FailingCall`], [`Fault`] |
//! | what a store decides | [`Plan`], [`Check`], [`Gate`], [`Role`], [`PlanMode`], [`PlanError`], [`CountedSubject`] |
//! | where a store keeps it | [`Key`], [`KeyStem`], [`Subject`], [`SubjectHasher`], [`KEY_VERSION`], [`PARTITIONS`] |
//! | too many subjects | [`Newcomer`], [`Network`], [`MAX_OVERFLOW_BUCKETS`] |
//! | finding the rules of a request | [`Matcher`], [`Match`], [`RequestMemo`], [`BodyUse`], [`BodyNeed`] |
//! | decisions on plans, in place of requests | [`PlanLimiter`] |
//! | metrics, logs and traces | [`Observer`], [`CheckResult`], [`Outcome`], [`Origin`], [`RequestProblemKind`] |
//! | the ledger | [`Outbox`], [`OutboxEntry`], [`EntryId`], [`EntryKind`], [`AccountKey`], [`GateState`], [`GateHold`], [`LedgerStage`], [`Journal`] |
//! | a [`Timer`](crate::Timer) | [`Sleep`] |
//! | text forms | [`format_address`] |
//! | bounds | [`MAX_AMOUNT`], [`MAX_CHECKS`], [`MAX_SHADOW_CHECKS`], [`MAX_LOG_LIMIT`], [`MAX_SLICES`], [`MAX_WINDOW`], [`DEFAULT_MAX_KEYS`], [`DEFAULT_MAX_SUBJECTS`] |

pub use crate::algorithm::Outcome;
pub use crate::clock::Sleep;
pub use crate::decimal::format_address;
pub use crate::decision::CheckResult;
pub use crate::failing_store::{FailingCall, FailingStore, Fault};
pub use crate::key::{KEY_VERSION, Key, KeyStem, PARTITIONS};
pub use crate::ledger::{
    AccountKey, BoxFuture, EntryId, EntryIdError, EntryKind, GateHold, GateHoldStatus, GateState, Journal, LedgerStage,
    MAX_GENERATION, Outbox, OutboxBatch, OutboxEntry, OutboxPosition, QuotaChange, UnconfirmedEntry,
};
pub use crate::limit::{MAX_AMOUNT, MAX_CONCURRENCY, MAX_LOG_LIMIT, MAX_SLICES, MAX_WINDOW};
pub use crate::limiter::PlanLimiter;
pub use crate::matcher::{BodyNeed, BodyUse, Match, Matcher, RequestMemo};
pub use crate::memory::DEFAULT_MAX_KEYS;
pub use crate::namespace::{Namespace, NamespaceError};
pub use crate::network::Network;
pub use crate::observer::Observer;
pub use crate::overflow::{MAX_OVERFLOW_BUCKETS, Newcomer};
pub use crate::periods::PeriodBounds;
pub use crate::plan::{
    Check, CountedSubject, Gate, LeaseOwner, MAX_CHECKS, MAX_SHADOW_CHECKS, Origin, Plan, PlanError, PlanMode,
    ReservationTerms, Role,
};
pub use crate::request_problem::RequestProblemKind;
pub use crate::rule::DEFAULT_MAX_SUBJECTS;
pub use crate::store::{Adjustment, AdjustmentResult, AdjustmentResults, KnownDenial, OutstandingHolds, Store};
pub use crate::subject::{Subject, SubjectHasher};
pub use crate::verdict::{CheckVerdict, HoldRefusal, Ops, Verdict};

/// The limits as pure functions, with the state that a store keeps for each and the Lua text of the same functions.
pub mod algorithm {
    #[doc(inline)]
    pub use crate::algorithm::*;
}
