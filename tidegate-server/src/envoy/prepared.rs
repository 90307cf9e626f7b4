//! `Prepared`: what a request must pass, in our words, and what the store says to it. It does not know where limits come from.

use std::time::Duration;

use smallvec::SmallVec;
use tidegate::spi::algorithm::{self, Op, Take, View};
use tidegate::spi::{Adjustment, Check, Origin, Plan, PlanError, PlanMode, Store};
use tidegate::{Decision, Limiter, OnFailure, StoreError, StoreErrorKind};
use tokio::time::{Instant, timeout_at};

use super::lookup::Configured;
use super::pb::{RateLimit, RateLimitDescriptor, RateLimitRequest};

/// The checks of a request.
pub(super) struct Prepared<'r> {
    /// What it consumes.
    pub(super) counted: Plan<'r>,
    /// What it must pass if a descriptor only looks: those that consume, at the same places, and the others as if they were
    /// one hit.
    pub(super) looked: Option<Plan<'r>>,
    /// What it gives back.
    pub(super) returned: Option<Plan<'r>>,
    /// What each descriptor asked for, in order.
    pub(super) wanted: SmallVec<[Wanted<'r>; 1]>,
    /// Whether it must be known what was there before hits that the store counts although it refuses them.
    pub(super) asks_before: bool,
}

/// What one descriptor asked for.
#[derive(Debug)]
pub(super) struct Wanted<'r> {
    pub(super) told: Told<'r>,
    pub(super) asks: Asks,
    pub(super) hits: u64,
    /// The hits of descriptors before it that go to the same counter.
    pub(super) ahead: u64,
    /// Its checks among those of its plan.
    pub(super) places: SmallVec<[usize; 1]>,
}

/// What a descriptor wants to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asks {
    Takes,
    Looks,
    Returns,
}

/// What its status says of a limit.
#[derive(Debug)]
pub(super) enum Told<'r> {
    /// None applies.
    Nothing,
    /// A limit without a limit.
    Unlimited,
    /// A limit of an Envoy configuration.
    Limit(&'r Configured),
    /// The limit of the request itself.
    Own(RateLimit),
    /// Whatever rules apply.
    Rules,
}

/// What the store says.
pub(super) struct Judged {
    pub(super) allowed: bool,
    pub(super) counted: Option<Decision>,
    pub(super) looked: Option<Decision>,
    pub(super) returned: Option<Decision>,
    /// A look at all that is consumed, before it was.
    pub(super) before: Option<Decision>,
}

/// Why a request gets no statuses.
#[derive(Debug)]
pub(super) enum Refusal {
    /// It makes no sense, or is too much.
    Invalid(String),
    /// The store failed, and limits must not be passed by then.
    Unavailable,
    /// The store failed, and this was decided without it.
    Degraded(Box<Decision>),
}

impl Refusal {
    pub(super) fn too_many(error: &PlanError) -> Self {
        Self::Invalid(format!("too many limits apply to the request: {error}"))
    }
}

/// How many hits a descriptor is: its own number, else that of the request, else one. Of 0, it only looks.
pub(super) fn hits(request: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> (u64, Asks) {
    let hits = descriptor.hits_addend.map_or_else(|| u64::from(request.hits_addend.max(1)), |hits| hits.value);
    let asks = match (hits, descriptor.is_negative_hits) {
        (0, _) => Asks::Looks,
        (_, false) => Asks::Takes,
        (_, true) => Asks::Returns,
    };
    (hits, asks)
}

/// A plan of these checks. Where there are none, it is asked all the same: somebody may count requests without a limit.
pub(super) fn plan<'r>(checks: impl IntoIterator<Item = Check<'r>>, strict: bool) -> Result<Plan<'r>, Refusal> {
    let plan = Plan::new(checks);
    let plan = plan.map_err(|error| Refusal::too_many(&error))?;
    let mode = if strict { PlanMode::CountEach } else { PlanMode::AllOrNothing };
    // Envoy asks and goes on: nobody here could hold the request.
    Ok(plan.with_mode(mode).with_max_delay(Duration::ZERO).with_origin(Origin::new("envoy")))
}

impl Prepared<'_> {
    /// Gives back what is given back, then decides the whole request in one step. Where a descriptor only looks, there is a
    /// look before it, and a request that does not pass that consumes nothing.
    async fn decide<S: Store>(&self, limiter: &Limiter<S>, strict: bool) -> Result<Judged, Refusal> {
        let plan = &self.counted;
        let failed = |error| self.without_store(limiter, error);
        let returned = match &self.returned {
            Some(plan) => Some(give_back(limiter, plan).await.map_err(failed)?),
            None => None,
        };
        let looked = match &self.looked {
            Some(plan) => Some(look(limiter, plan).await.map_err(failed)?),
            None => None,
        };
        let before = if self.asks_before { Some(look(limiter, plan).await.map_err(failed)?) } else { None };
        let passes = looked.as_ref().is_none_or(Decision::is_allowed);
        let counts = plan.checks().iter().any(|check| check.cost() > 0);
        let mut judged = Judged { allowed: passes, counted: None, looked, returned, before };
        let only_else = !counts && (judged.looked.is_some() || judged.returned.is_some());
        if !only_else && (passes || strict) {
            let decision = limiter.check_plan(plan).await.map_err(|_| Refusal::Unavailable)?;
            match decision.degraded() {
                None => {}
                Some(_) if passes => return Err(Refusal::Degraded(Box::new(decision))),
                // The store has refused it before it failed: that stands.
                Some(_) => return Ok(judged),
            }
            judged.allowed &= decision.is_allowed();
            judged.counted = Some(decision);
        }
        Ok(judged)
    }

    /// [Decides](Self::decide) the request in the time that there is, whatever the store does.
    pub(super) async fn decide_within<S: Store>(
        mut self,
        limiter: &Limiter<S>,
        strict: bool,
        budget: Duration,
    ) -> (Self, Result<Judged, Refusal>) {
        // The store is told, so that it notices silence in time.
        self.counted = self.counted.with_timeout(budget);
        self.looked = self.looked.map(|plan| plan.with_timeout(budget));
        self.returned = self.returned.map(|plan| plan.with_timeout(budget));
        let ends = Instant::now() + budget;
        let judged = match timeout_at(ends, self.decide(limiter, strict)).await {
            Ok(judged) => judged,
            Err(_) => Err(self.without_store(limiter, too_late())),
        };
        if let Ok(Judged { allowed: false, counted, .. }) = &judged
            && !strict
        {
            // The request is refused either way: what cannot be counted leaves the limit more generous, not the answer.
            let _ = timeout_at(ends, self.charge(limiter, counted.as_ref())).await;
        }
        (self, judged)
    }

    /// What its limits ask for when the store has failed.
    pub(super) fn without_store<S: Store>(&self, limiter: &Limiter<S>, error: StoreError) -> Refusal {
        if self.returned.as_ref().is_some_and(Plan::fails_closed) {
            return Refusal::Unavailable;
        }
        if let Some(looked) = &self.looked {
            let same = StoreError::new(error.kind(), "the store failed");
            match limiter.fall_back(&looked.clone().with_peek(), same) {
                Ok(decision) if decision.is_allowed() => {}
                Ok(decision) => return Refusal::Degraded(Box::new(decision)),
                Err(_) => return Refusal::Unavailable,
            }
        }
        match limiter.fall_back(&self.counted, error) {
            Ok(decision) => Refusal::Degraded(Box::new(decision)),
            Err(_) => Refusal::Unavailable,
        }
    }

    /// Counts what was refused where a limit wants that: it has happened, and the limit is used up by it at most.
    async fn charge<S: Store>(&self, limiter: &Limiter<S>, decision: Option<&Decision>) -> Result<(), StoreError> {
        let consumed = |place: usize| decision.is_some_and(|decision| decision.checks()[place].is_consumed());
        let charged = self.wanted.iter().filter(|wanted| wanted.counts_refused());
        let mut places: Vec<usize> = charged.flat_map(|wanted| wanted.places.iter().copied()).collect();
        places.sort_unstable();
        places.dedup();
        let checks = places.into_iter().filter(|place| !consumed(*place)).map(|place| &self.counted.checks()[place]);
        let charges: Vec<Adjustment<'_>> = checks.map(Adjustment::charge).collect();
        limiter.adjust(&charges).await
    }
}

impl Wanted<'_> {
    /// Whether its hits count even if the request is refused.
    pub(super) const fn counts_refused(&self) -> bool {
        matches!((&self.told, self.asks), (Told::Limit(limit), Asks::Takes) if limit.counts_refused)
    }
}

fn too_late() -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "the store did not answer in the time that the caller has")
        .possibly_applied()
}

async fn look<S: Store>(limiter: &Limiter<S>, plan: &Plan<'_>) -> Result<Decision, StoreError> {
    limiter.check_plan(&plan.clone().with_peek().with_on_failure(OnFailure::Closed)).await
}

/// Gives hits back to the window or slice that the store is in, and to buckets; never more than was counted there. Then it
/// looks what there is.
async fn give_back<S: Store>(limiter: &Limiter<S>, plan: &Plan<'_>) -> Result<Decision, StoreError> {
    let now = look(limiter, plan).await?.decided_at();
    let place = |check: &Check<'_>| {
        let (limit, cost) = (check.gate().limit(), check.cost());
        // Where hits of now go. If the window ends before the store gets to it, nothing is given back.
        algorithm::place(&View::Fresh, limit, now, Take::one(cost))
    };
    let refund = |check| Adjustment::new(check, Op::Refund { cost: check.cost(), place: place(check) });
    let refunds: Vec<Adjustment<'_>> = plan.checks().iter().map(refund).collect();
    limiter.adjust(&refunds).await?;
    look(limiter, plan).await
}

impl Judged {
    /// What was said to a descriptor that asks for this.
    pub(super) fn of(&self, asks: Asks) -> Option<&Decision> {
        match asks {
            Asks::Takes => self.counted.as_ref().or(self.looked.as_ref()),
            Asks::Looks => self.looked.as_ref(),
            Asks::Returns => self.returned.as_ref(),
        }
    }

    /// The decision to show: the one that refuses, if one does.
    pub(super) fn shown(&self) -> Option<&Decision> {
        let both = || [&self.counted, &self.looked].into_iter().flatten();
        both().find(|decision| !decision.is_allowed()).or_else(|| both().next())
    }
}
