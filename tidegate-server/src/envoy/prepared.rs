//! `Prepared`: what a request must pass, in our words, and what the store says to it. It does not know where limits come from.

use std::time::Duration;

use tidegate::{Check, Decision, Limiter, Plan, PlanMode, Store};

use super::pb::{RateLimit, RateLimitDescriptor, RateLimitRequest};

/// The checks of a request.
pub(super) struct Prepared<'r> {
    /// What it consumes.
    pub(super) checks: Vec<Check<'r>>,
    /// What it must pass if a descriptor only looks: those that consume, and the others as if they were one hit.
    pub(super) looked: Option<Vec<Check<'r>>>,
    /// What each descriptor asked for, in order.
    pub(super) wanted: Vec<Wanted>,
}

/// What one descriptor asked for.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) told: Told,
    pub(super) looks: bool,
    /// Its checks among [`Prepared::checks`].
    pub(super) places: Vec<usize>,
    /// Its checks among [`Prepared::looked`].
    pub(super) looked: Vec<usize>,
}

/// What its status says of a limit.
#[derive(Debug)]
pub(super) enum Told {
    /// None applies.
    Nothing,
    /// A limit without a limit.
    Unlimited,
    /// A limit of an Envoy configuration, or of the request itself.
    Limit(RateLimit),
    /// Whatever rules apply.
    Rules,
}

/// What the store says.
pub(super) struct Judged {
    pub(super) allowed: bool,
    pub(super) counted: Option<Decision>,
    pub(super) looked: Option<Decision>,
}

/// Why a request gets no statuses.
#[derive(Debug)]
pub(super) enum Refusal {
    /// It makes no sense, or is too much.
    Invalid(String),
    /// The store failed, and limits must not be passed by then.
    Unavailable,
    /// The store failed, and the request passes.
    Degraded,
}

/// How many hits a descriptor is: its own number, else that of the request, else one. Of 0, it only looks.
pub(super) fn hits(request: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> u64 {
    descriptor.hits_addend.map_or_else(|| u64::from(request.hits_addend.max(1)), |hits| hits.value)
}

impl Prepared<'_> {
    /// Decides the whole request in one step. Where a descriptor only looks, there is a look before it, and a request that
    /// does not pass that consumes nothing.
    pub(super) async fn decide<S: Store>(&self, limiter: &Limiter<S>, strict: bool) -> Result<Judged, Refusal> {
        let plan = plan(&self.checks, strict)?;
        let looked = match &self.looked {
            Some(checks) => Some(look(limiter, checks, strict).await?),
            None => None,
        };
        let passes = looked.as_ref().is_none_or(Decision::is_allowed);
        let counts = self.checks.iter().any(|check| check.cost() > 0);
        if looked.is_some() && !(counts && (passes || strict)) {
            return Ok(Judged { allowed: passes, counted: None, looked });
        }
        let decision = limiter.decide(&plan).await.map_err(|_| failed(&plan))?;
        Ok(Judged { allowed: passes && decision.is_allowed(), counted: Some(decision), looked })
    }
}

async fn look<S: Store>(limiter: &Limiter<S>, checks: &[Check<'_>], strict: bool) -> Result<Decision, Refusal> {
    let plan = plan(checks, strict)?;
    let verdict = limiter.store().peek(&plan).await.map_err(|_| failed(&plan))?;
    Ok(Decision::new(&plan, &verdict))
}

fn failed(plan: &Plan<'_>) -> Refusal {
    if plan.fails_closed() { Refusal::Unavailable } else { Refusal::Degraded }
}

fn plan<'r>(checks: &[Check<'r>], strict: bool) -> Result<Plan<'r>, Refusal> {
    let plan = Plan::new(checks.iter().copied());
    let plan = plan.map_err(|error| Refusal::Invalid(format!("too many limits apply to the request: {error}")))?;
    let mode = if strict { PlanMode::CountEach } else { PlanMode::AllOrNothing };
    // Envoy asks and goes on: nobody here could hold the request.
    Ok(plan.mode(mode).longest_delay(Duration::ZERO))
}

impl Judged {
    /// The decision to show: the one that refuses, if one does.
    pub(super) fn shown(&self) -> Option<&Decision> {
        let both = || [&self.counted, &self.looked].into_iter().flatten();
        both().find(|decision| !decision.is_allowed()).or_else(|| both().next())
    }
}
