//! `RequestPlan`: the plans of a request and their execution. It does not know whether the limits come from an Envoy
//! configuration or from the rule file.

use std::time::Duration;

use smallvec::SmallVec;
use tidegate::http::ErrorFormat;
use tidegate::spi::{Adjustment, Check, CheckResult, Origin, Plan, PlanError, PlanMode, Role, Store};
use tidegate::{Decision, Limiter, OnFailure, StoreError, StoreErrorKind};

use super::descriptor_tree::ConfiguredLimit;
use super::messages::{RateLimit, RateLimitDescriptor, RateLimitRequest};

/// The plans of a request.
pub(super) struct RequestPlan<'r> {
    /// The hits to consume.
    pub(super) consume: Plan<'r>,
    /// Set if a descriptor only peeks: the checks of `consume` at the same indexes, then those of the others with one hit.
    pub(super) peek: Option<Box<Plan<'r>>>,
    /// The hits to refund.
    pub(super) refund: Option<Box<Plan<'r>>>,
    /// One for each descriptor of the request, in order.
    pub(super) descriptors: SmallVec<[DescriptorPlan<'r>; 1]>,
    /// Whether to peek at `consume` first, because the store counts hits that it denies (strict mode).
    pub(super) peeks_before: bool,
}

/// The part of a plan that one descriptor needs.
#[derive(Debug)]
pub(super) struct DescriptorPlan<'r> {
    pub(super) limit: AppliedLimit<'r>,
    pub(super) mode: HitsMode,
    pub(super) hits: u64,
    /// Hits of earlier descriptors on the same counter.
    pub(super) hits_before: u64,
    pub(super) denied_hits: DeniedHits,
    /// Indexes of its checks in the plan of its mode.
    pub(super) checks: SmallVec<[usize; 1]>,
}

/// Whether the hits of a descriptor count if its request is denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeniedHits {
    /// They count nothing.
    Ignored,
    /// They fill the limit if they exceed it and it is [the one to fill](StoredOutcome::is_to_be_filled).
    FillExceeded,
    /// They count, whichever limit denies the request.
    Counted,
}

/// What to do with the hits of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HitsMode {
    Consume,
    Peek,
    Refund,
}

/// The limit that applies to a descriptor.
#[derive(Debug)]
pub(super) enum AppliedLimit<'r> {
    None,
    /// A descriptor with `unlimited: true`.
    Unlimited,
    /// A limit of an Envoy configuration.
    Configured(&'r ConfiguredLimit),
    /// The limit that the request contains.
    Override(RateLimit),
    /// The rules of the rule file.
    Rules,
}

/// The result for a request.
#[allow(clippy::large_enum_variant, reason = "nearly all are those of the store")]
pub(super) enum PlanOutcome {
    /// The store decided.
    Stored(StoredOutcome),
    /// The store failed, and the fallback decided.
    Degraded(Box<Decision>),
    /// This instance is overloaded, and the request is refused in this format.
    Overloaded(StoreError, Option<ErrorFormat>),
}

/// The decisions of the store.
pub(super) struct StoredOutcome {
    pub(super) allowed: bool,
    pub(super) consumed: Option<Decision>,
    pub(super) peeked: Option<Box<Decision>>,
    pub(super) refunded: Option<Box<Decision>>,
    /// The state before the hits were consumed, if the plan asks for it.
    pub(super) before: Option<Box<Decision>>,
}

/// Why a request gets no complete statuses.
#[derive(Debug)]
pub(super) enum DecideError {
    /// The request is malformed or too large.
    Invalid(String),
    /// The store failed, and a limit fails closed.
    Unavailable,
}

impl DecideError {
    pub(super) fn too_many_checks(error: &PlanError) -> Self {
        Self::Invalid(format!("too many limits apply to the request: {error}"))
    }
}

/// The hits of a descriptor: its own `hits_addend`, else that of the request, else 1. A 0 of its own means a peek.
pub(super) fn hits(request: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> (u64, HitsMode) {
    let hits = descriptor.hits_addend.map_or_else(|| u64::from(request.hits_addend.max(1)), |hits| hits.value);
    let mode = match (hits, descriptor.is_negative_hits) {
        (0, _) => HitsMode::Peek,
        (_, false) => HitsMode::Consume,
        (_, true) => HitsMode::Refund,
    };
    (hits, mode)
}

/// Whether the request may be a charge: every descriptor has hits of its own. Envoy sends them after the response
/// (`apply_on_stream_done`), when they are already used and a denial prevents nothing. Nothing else marks such a request, and a route whose
/// entries all have a `hits_addend` sends the same before the response. So such hits fill only limits that they exceed, and only one of those
/// that deny: a client over its own limit must not use up one that it shares with others.
pub(super) fn is_charge(request: &RateLimitRequest) -> bool {
    request.descriptors.iter().all(|descriptor| descriptor.hits_addend.is_some_and(|hits| hits.value > 0))
}

/// A plan of these checks. One without checks is decided as well, so that observers count the request.
pub(super) fn plan<'r>(checks: impl IntoIterator<Item = Check<'r>>, strict: bool) -> Result<Plan<'r>, DecideError> {
    let plan = Plan::new(checks);
    let plan = plan.map_err(|error| DecideError::too_many_checks(&error))?;
    let mode = if strict { PlanMode::CountEach } else { PlanMode::AllOrNothing };
    // Envoy waits for the decision only, so the service cannot delay a request.
    Ok(plan.with_mode(mode).with_max_delay(Duration::ZERO).with_origin(Origin::new("envoy")))
}

impl RequestPlan<'_> {
    /// Refunds first, then peeks, then consumes all hits in one step. A request that the peek denies consumes nothing.
    async fn decide<S: Store>(&self, limiter: &Limiter<S>, strict: bool) -> Result<PlanOutcome, DecideError> {
        let plan = &self.consume;
        let (mut refunded, mut peeked, mut before) = (None, None, None);
        if self.refund.is_some() || self.peek.is_some() || self.peeks_before {
            // Boxed, since refunds and peeks are rare, and every call would be as large.
            match Box::pin(self.refund_and_peek(limiter)).await {
                Ok(decisions) => [refunded, peeked, before] = decisions,
                Err(error) => return self.decide_without_store(limiter, error),
            }
        }
        let passes = peeked.as_ref().is_none_or(|peeked| peeked.is_allowed());
        let consumes = plan.checks().iter().any(|check| check.cost() > 0);
        let mut outcome = StoredOutcome { allowed: passes, consumed: None, peeked, refunded, before };
        let is_done = !consumes && (outcome.peeked.is_some() || outcome.refunded.is_some());
        if !is_done && (passes || strict) {
            match limiter.plans().check(plan).await {
                Ok(decision) if decision.degraded().is_none() => {
                    outcome.allowed &= decision.is_allowed();
                    outcome.consumed = Some(decision);
                }
                Ok(decision) if passes => return Ok(PlanOutcome::Degraded(Box::new(decision))),
                // The store denied it before it failed; the denial stands.
                Ok(_) => {}
                Err(error) => return self.refused(error),
            }
        }
        Ok(PlanOutcome::Stored(outcome))
    }

    /// The decisions after the refund, of the peek, and before the hits are consumed, as far as the plan asks for them.
    async fn refund_and_peek<S: Store>(&self, limiter: &Limiter<S>) -> Result<[Option<Box<Decision>>; 3], StoreError> {
        let refunded = match &self.refund {
            Some(plan) => Some(Box::new(limiter.plans().refund(plan).await?)),
            None => None,
        };
        let peeked = match &self.peek {
            Some(plan) => Some(peek(limiter, plan).await?),
            None => None,
        };
        let before = if self.peeks_before { Some(peek(limiter, &self.consume).await?) } else { None };
        Ok([refunded, peeked, before])
    }

    /// [Decides](Self::decide) the request within `timeout`, even if the store does not answer.
    pub(super) async fn decide_within<S: Store>(
        mut self,
        limiter: &Limiter<S>,
        strict: bool,
        timeout: Duration,
    ) -> (Self, Result<PlanOutcome, DecideError>) {
        // With the timeout in the plan, the store notices a silent server in time.
        self.consume = self.consume.with_timeout(timeout);
        self.peek = self.peek.map(|plan| Box::new(plan.with_timeout(timeout)));
        self.refund = self.refund.map(|plan| Box::new(plan.with_timeout(timeout)));
        let mut decided = None;
        let calls = async {
            let outcome = decided.insert(self.decide(limiter, strict).await);
            if let Ok(PlanOutcome::Stored(outcome)) = outcome
                && !strict
                && self.descriptors.iter().any(|descriptor| descriptor.has_denied_hits_to_count(outcome))
            {
                // The decision stands. A failure leaves the limit more generous, but not this response.
                let _ = Box::pin(self.charge_denied(limiter, outcome)).await;
            }
        };
        let _ = tokio::time::timeout(timeout, calls).await;
        let outcome = decided.unwrap_or_else(|| self.decide_without_store(limiter, timeout_error()));
        (self, outcome)
    }

    /// The store failed with `error`, and the limits refuse the request.
    fn refused(&self, error: StoreError) -> Result<PlanOutcome, DecideError> {
        match error.kind() {
            StoreErrorKind::Overloaded => Ok(PlanOutcome::Overloaded(error, self.consume.error_format())),
            _ => Err(DecideError::Unavailable),
        }
    }

    /// The result by the failure policies of the limits.
    fn decide_without_store<S: Store>(
        &self,
        limiter: &Limiter<S>,
        error: StoreError,
    ) -> Result<PlanOutcome, DecideError> {
        if self.refund.as_ref().is_some_and(|refund| refund.fails_closed(&error)) {
            return self.refused(error);
        }
        if let Some(peek) = &self.peek {
            match limiter.plans().fall_back(&Plan::clone(peek).with_peek(), error.clone()) {
                Ok(decision) if decision.is_allowed() => {}
                Ok(decision) => return Ok(PlanOutcome::Degraded(Box::new(decision))),
                Err(error) => return self.refused(error),
            }
        }
        match limiter.plans().fall_back(&self.consume, error) {
            Ok(decision) => Ok(PlanOutcome::Degraded(Box::new(decision))),
            Err(error) => self.refused(error),
        }
    }

    /// Counts the denied hits of descriptors that count them, at most up to the limit.
    async fn charge_denied<S: Store>(&self, limiter: &Limiter<S>, outcome: &StoredOutcome) -> Result<(), StoreError> {
        let charged = self.descriptors.iter().filter(|descriptor| descriptor.has_denied_hits_to_count(outcome));
        let mut indexes: Vec<usize> = charged.flat_map(|descriptor| descriptor.checks.iter().copied()).collect();
        indexes.sort_unstable();
        indexes.dedup();
        let charges: Vec<Adjustment<'_>> =
            indexes.into_iter().map(|index| Adjustment::charge(&self.consume.checks()[index])).collect();
        limiter.plans().adjust(&charges).await
    }
}

impl DescriptorPlan<'_> {
    /// Whether its hits were not consumed, and count nevertheless.
    pub(super) fn has_denied_hits_to_count(&self, outcome: &StoredOutcome) -> bool {
        let decision = outcome.consumed.as_ref();
        let is_consumed =
            |index: &usize| decision.and_then(|decision| decision.check(*index)).is_some_and(CheckResult::is_consumed);
        let counts = match self.denied_hits {
            DeniedHits::Ignored => false,
            DeniedHits::FillExceeded => self.checks.iter().any(|index| outcome.is_to_be_filled(*index)),
            DeniedHits::Counted => !self.checks.is_empty(),
        };
        counts && !self.checks.iter().all(is_consumed)
    }
}

fn timeout_error() -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "the store did not answer within the caller's timeout")
        .with_possibly_applied()
}

async fn peek<S: Store>(limiter: &Limiter<S>, plan: &Plan<'_>) -> Result<Box<Decision>, StoreError> {
    limiter.plans().check(&plan.clone().with_peek().with_on_failure(OnFailure::Closed)).await.map(Box::new)
}

impl StoredOutcome {
    /// Whether the denied hits of a charge fill the limit of this check. They fill one of the limits that deny the request, so that it denies
    /// the next one: none if one is full already, else the smallest, since a limit of one client is smaller than one of many. If no limit
    /// denies the request by itself, they fill all that they exceed: limits in shadow mode, and quotas, which deny only together.
    fn is_to_be_filled(&self, index: usize) -> bool {
        let Some(decision) = &self.consumed else { return false };
        let Some(check) = decision.check(index) else { return false };
        let is_exceeded = |check: &&CheckResult| !check.outcome().admitted;
        let denying = decision.checks().iter().filter(|check| check.role() == Role::Enforced).filter(is_exceeded);
        let filled = denying.min_by_key(|check| (check.outcome().remaining > 0, check.outcome().limit));
        filled.map_or_else(|| is_exceeded(&check), |filled| std::ptr::eq(filled, check))
    }

    /// The decision for descriptors of this mode.
    pub(super) fn decision(&self, mode: HitsMode) -> Option<&Decision> {
        match mode {
            HitsMode::Consume => self.consumed.as_ref().or(self.peeked.as_deref()),
            HitsMode::Peek => self.peeked.as_deref(),
            HitsMode::Refund => self.refunded.as_deref(),
        }
    }

    /// The decision for the response headers: the one that denies, if one does.
    pub(super) fn decision_to_show(&self) -> Option<&Decision> {
        let both = || [self.consumed.as_ref(), self.peeked.as_deref()].into_iter().flatten();
        both().find(|decision| !decision.is_allowed()).or_else(|| both().next())
    }
}
