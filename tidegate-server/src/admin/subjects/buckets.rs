//! `Buckets`: the state of the limits of a subject in the store. Reading it consumes nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::grants::OutstandingReservations;
use tidegate::spi::{Check, CheckResult, Plan};
use tidegate::{Decision, Limit, Limiter, OnFailure, StoreError};

use crate::doors::check::check_response::CheckResponse;
use crate::engine::instrumented_store::InstrumentedStore;

/// The buckets of a subject.
#[derive(Default)]
pub(super) struct Buckets(Vec<Bucket>);

/// One limit of a subject.
struct Bucket {
    rule: String,
    kind: BucketKind,
    /// Whether it differs from a fresh one.
    has_state: bool,
    /// As in the check API, with what is reserved of it.
    json: Value,
}

/// Who resets a bucket.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BucketKind {
    /// The store.
    Own,
    /// An entry of the ledger.
    Account,
    /// Nobody: new subjects share it.
    Overflow,
}

impl Buckets {
    /// The buckets of these plans. `matching` are the rules that the request matches.
    pub(super) async fn read(
        limiter: &Limiter<InstrumentedStore>,
        plans: &[Plan<'_>],
        matching: &BTreeSet<&str>,
    ) -> Result<Self, StoreError> {
        let mut buckets = Self::default();
        for plan in plans {
            buckets.read_plan(limiter, plan, matching).await?;
        }
        Ok(buckets)
    }

    /// The buckets of these plans. A state that cannot be read counts as one: a reset deletes it.
    pub(super) async fn read_for_reset(limiter: &Limiter<InstrumentedStore>, plans: &[Plan<'_>]) -> Self {
        let mut buckets = Self::default();
        for plan in plans {
            if buckets.read_plan(limiter, plan, &BTreeSet::new()).await.is_err() {
                buckets.0.extend(plan.checks().iter().map(Bucket::unreadable));
            }
        }
        buckets
    }

    async fn read_plan(
        &mut self,
        limiter: &Limiter<InstrumentedStore>,
        plan: &Plan<'_>,
        matching: &BTreeSet<&str>,
    ) -> Result<(), StoreError> {
        let (decision, reserved) = (peek(limiter, plan).await?, limiter.plans().outstanding(plan).await?);
        let mut answer = serde_json::to_value(CheckResponse::new(&decision)).unwrap_or_default();
        let Some(Value::Array(checks)) = answer.get_mut("checks").map(Value::take) else { return Ok(()) };
        for (json, (result, check)) in checks.into_iter().zip(decision.checks().iter().zip(plan.checks())) {
            self.0.push(Bucket::new(json, result, check, &reserved, matching));
        }
        Ok(())
    }

    /// The rules under which the store has something to reset.
    pub(super) fn rules_with_state(&self) -> BTreeSet<&str> {
        self.rules(|bucket| bucket.kind == BucketKind::Own && bucket.has_state)
    }

    /// The rules under which the subject is counted in a bucket that new subjects share.
    pub(super) fn overflow_rules(&self) -> BTreeSet<&str> {
        self.rules(|bucket| bucket.kind == BucketKind::Overflow)
    }

    pub(super) fn rules_of_all(&self) -> BTreeSet<&str> {
        self.rules(|_| true)
    }

    pub(super) fn has_state(&self) -> bool {
        self.0.iter().any(|bucket| bucket.kind != BucketKind::Overflow && bucket.has_state)
    }

    pub(super) fn into_json(self) -> Value {
        self.0.into_iter().map(|bucket| bucket.json).collect()
    }

    fn rules(&self, is_meant: impl Fn(&Bucket) -> bool) -> BTreeSet<&str> {
        self.0.iter().filter(|bucket| is_meant(bucket)).map(|bucket| bucket.rule.as_str()).collect()
    }
}

impl Bucket {
    fn new(
        mut json: Value,
        result: &CheckResult,
        check: &Check<'_>,
        reserved: &[OutstandingReservations],
        matching: &BTreeSet<&str>,
    ) -> Self {
        let is_same = |one: &&OutstandingReservations| {
            one.rule == result.rule() && one.limit_name == result.limit_name() && one.reservations > 0
        };
        let reserved = reserved.iter().find(is_same);
        json["matches"] = matching.contains(result.rule()).into();
        if let Some(reserved) = reserved {
            json["reserved"] = json!({ "reservations": reserved.reservations, "units": reserved.units });
        }
        if result.is_overflowed() {
            json["overflowed"] = true.into();
        }
        let kind = if result.is_overflowed() { BucketKind::Overflow } else { BucketKind::of_check(check) };
        let has_state = result.is_skipped() || result.outcome().reset_after > Duration::ZERO || reserved.is_some();
        Self { rule: result.rule().to_owned(), kind, has_state, json }
    }

    fn unreadable(check: &Check<'_>) -> Self {
        let rule = check.gate().rule().id.to_string();
        Self { rule, kind: BucketKind::of_check(check), has_state: true, json: Value::Null }
    }
}

impl BucketKind {
    fn of_check(check: &Check<'_>) -> Self {
        let is_account = check.gate().ledger().is_some() && matches!(check.gate().limit(), Limit::Quota(_));
        if is_account { Self::Account } else { Self::Own }
    }
}

/// The state of a plan in the store. Without the store there is no answer: a decision of this instance alone would say nothing about
/// the subject.
pub(super) async fn peek(limiter: &Limiter<InstrumentedStore>, plan: &Plan<'_>) -> Result<Decision, StoreError> {
    limiter.plans().check(&plan.clone().with_peek().with_observed(false).with_on_failure(OnFailure::Closed)).await
}
