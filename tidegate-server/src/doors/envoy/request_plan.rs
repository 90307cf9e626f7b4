//! `RequestPlan`: the plans of a request and their execution. It does not know whether the limits come from an Envoy
//! configuration or from the rule file.

use std::time::Duration;

use smallvec::SmallVec;
use tidegate::http::ErrorFormat;
use tidegate::spi::algorithm::{self, Op, StateView, Take};
use tidegate::spi::{Adjustment, Check, Origin, Plan, PlanError, PlanMode, Role, Store};
use tidegate::{CheckResult, Decision, Limiter, OnFailure, StoreError, StoreErrorKind};
use tokio::time::{Instant, timeout_at};

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
    /// They fill the limit if they exceed it and it is [the one to fill](PlanOutcome::is_to_be_filled).
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

/// The decisions of the store.
pub(super) struct PlanOutcome {
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
    /// This instance is overloaded, and the request is refused in this format.
    Overloaded(StoreError, Option<ErrorFormat>),
    /// The store failed, and the fallback decided.
    Degraded(Box<Decision>),
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
        let failed = |error| self.decide_without_store(limiter, error);
        // Refunds and peeks are boxed, since they are rare, and every call would be as large.
        let refunded = match &self.refund {
            Some(plan) => Some(Box::pin(refund(limiter, plan)).await.map_err(failed)?),
            None => None,
        };
        let peeked = match &self.peek {
            Some(plan) => Some(Box::pin(peek(limiter, plan)).await.map_err(failed)?),
            None => None,
        };
        let before = if self.peeks_before { Some(Box::pin(peek(limiter, plan)).await.map_err(failed)?) } else { None };
        let passes = peeked.as_ref().is_none_or(|peeked| peeked.is_allowed());
        let consumes = plan.checks().iter().any(|check| check.cost() > 0);
        let mut outcome = PlanOutcome { allowed: passes, consumed: None, peeked, refunded, before };
        let is_done = !consumes && (outcome.peeked.is_some() || outcome.refunded.is_some());
        if !is_done && (passes || strict) {
            let decision = limiter.check_plan(plan).await.map_err(|error| self.refused(error))?;
            match decision.degraded() {
                None => {}
                Some(_) if passes => return Err(DecideError::Degraded(Box::new(decision))),
                // The store denied it before it failed; the denial stands.
                Some(_) => return Ok(outcome),
            }
            outcome.allowed &= decision.is_allowed();
            outcome.consumed = Some(decision);
        }
        Ok(outcome)
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
        let deadline = Instant::now() + timeout;
        let outcome = match timeout_at(deadline, self.decide(limiter, strict)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(self.decide_without_store(limiter, timeout_error())),
        };
        if let Ok(outcome) = &outcome
            && !strict
            && self.descriptors.iter().any(|descriptor| descriptor.has_denied_hits_to_count(outcome))
        {
            // The decision stands. A failure leaves the limit more generous, but not this response.
            let _ = timeout_at(deadline, Box::pin(self.charge_denied(limiter, outcome))).await;
        }
        (self, outcome)
    }

    /// The store failed with `error`, and the limits refuse the request.
    fn refused(&self, error: StoreError) -> DecideError {
        match error.kind() {
            StoreErrorKind::Overloaded => DecideError::Overloaded(error, self.consume.error_format()),
            _ => DecideError::Unavailable,
        }
    }

    /// The result by the failure policies of the limits.
    fn decide_without_store<S: Store>(&self, limiter: &Limiter<S>, error: StoreError) -> DecideError {
        if self.refund.as_ref().is_some_and(|refund| refund.fails_closed(&error)) {
            return self.refused(error);
        }
        if let Some(peek) = &self.peek {
            match limiter.fall_back(&Plan::clone(peek).with_peek(), error.clone()) {
                Ok(decision) if decision.is_allowed() => {}
                Ok(decision) => return DecideError::Degraded(Box::new(decision)),
                Err(error) => return self.refused(error),
            }
        }
        match limiter.fall_back(&self.consume, error) {
            Ok(decision) => DecideError::Degraded(Box::new(decision)),
            Err(error) => self.refused(error),
        }
    }

    /// Counts the denied hits of descriptors that count them, at most up to the limit.
    async fn charge_denied<S: Store>(&self, limiter: &Limiter<S>, outcome: &PlanOutcome) -> Result<(), StoreError> {
        let charged = self.descriptors.iter().filter(|descriptor| descriptor.has_denied_hits_to_count(outcome));
        let mut indexes: Vec<usize> = charged.flat_map(|descriptor| descriptor.checks.iter().copied()).collect();
        indexes.sort_unstable();
        indexes.dedup();
        let charges: Vec<Adjustment<'_>> =
            indexes.into_iter().map(|index| Adjustment::charge(&self.consume.checks()[index])).collect();
        limiter.adjust(&charges).await
    }
}

impl DescriptorPlan<'_> {
    /// Whether its hits were not consumed, and count nevertheless.
    pub(super) fn has_denied_hits_to_count(&self, outcome: &PlanOutcome) -> bool {
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
    limiter.check_plan(&plan.clone().with_peek().with_on_failure(OnFailure::Closed)).await.map(Box::new)
}

/// Refunds hits to the current window or slice, and to buckets; never more than was counted there. Then peeks at the result.
async fn refund<S: Store>(limiter: &Limiter<S>, plan: &Plan<'_>) -> Result<Box<Decision>, StoreError> {
    let now = peek(limiter, plan).await?.decided_at();
    let position = |check: &Check<'_>| {
        let (limit, cost) = (check.gate().limit(), check.cost());
        // The position of hits at this moment. If the window ends before the refund is applied, nothing is refunded.
        algorithm::position(&StateView::Fresh, limit, now, Take::one(cost))
    };
    let refund = |check| Adjustment::new(check, Op::Refund { cost: check.cost(), position: position(check) });
    let refunds: Vec<Adjustment<'_>> = plan.checks().iter().map(refund).collect();
    limiter.adjust(&refunds).await?;
    peek(limiter, plan).await
}

impl PlanOutcome {
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
