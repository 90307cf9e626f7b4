//! `CheckResult`: the result of one check, with its rule, limit and subject.

use std::sync::Arc;
use std::time::Duration;

use smol_str::SmolStr;

use crate::Network;
use crate::algorithm::{Calendar, Outcome, TakePosition};
use crate::http::ErrorFormat;
use crate::limit::Algorithm;
use crate::limits::Window;
use crate::plan::{Check, Plan, Role};
use crate::spi::{CheckVerdict, Subject};

/// The result of one check, with its rule, limit and subject.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
pub struct CheckResult {
    pub(crate) rule: SmolStr,
    pub(crate) limit_name: SmolStr,
    /// `None` for most rules.
    pub(crate) plan: Option<Arc<str>>,
    pub(crate) security: bool,
    pub(crate) error_format: Option<ErrorFormat>,
    pub(crate) window: Calendar,
    pub(crate) algorithm: Algorithm,
    pub(crate) role: Role,
    pub(crate) subject: Subject,
    pub(crate) partition: u16,
    pub(crate) cost: u64,
    pub(crate) consumed: bool,
    /// Whether what it consumed is the hold of a reservation.
    pub(crate) hold: bool,
    pub(crate) anonymous: bool,
    pub(crate) network: Option<Network>,
    pub(crate) overflowed: bool,
    /// Whether this instance decided it in its own memory, so that there is nothing to refund in the store.
    pub(crate) local: bool,
    /// Whether it was decided there with the share of this instance, not with the whole limit.
    pub(crate) share: bool,
    pub(crate) skipped: bool,
    pub(crate) position: TakePosition,
    pub(crate) outcome: Outcome,
}

impl CheckResult {
    #[inline(always)]
    pub(super) fn new(plan: &Plan<'_>, check: &Check<'_>, result: &CheckVerdict) -> Self {
        let gate = check.gate();
        Self {
            rule: gate.rule().id.clone(),
            limit_name: gate.limit_name().clone(),
            plan: gate.plan_arc(),
            security: check.is_security(),
            error_format: gate.rule().error_format,
            window: gate.window(),
            algorithm: gate.limit().algorithm(),
            role: gate.role(),
            subject: check.key().subject(),
            partition: check.key().partition(),
            cost: check.cost(),
            consumed: result.consumed,
            hold: result.consumed && plan.is_hold(check),
            anonymous: check.is_anonymous(),
            network: check.network(),
            overflowed: result.overflowed,
            local: result.stateless,
            share: false,
            skipped: result.skipped,
            position: result.position,
            outcome: result.outcome,
        }
    }

    /// The id of the rule.
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// The name of the limit within its rule, often empty.
    pub fn limit_name(&self) -> &str {
        &self.limit_name
    }

    /// The plan of the limit, often empty.
    pub fn plan(&self) -> &str {
        self.plan.as_deref().unwrap_or_default()
    }

    /// Whether responses must not contain details about it.
    pub const fn is_security(&self) -> bool {
        self.security
    }

    /// The window of the limit; for a bucket, the time to refill completely, rounded up.
    pub const fn window(&self) -> Window {
        Window::from_calendar(self.window)
    }

    /// The kind of limit.
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// How it counts in the plan.
    pub const fn role(&self) -> Role {
        self.role
    }

    /// The subject, hashed.
    pub const fn subject(&self) -> Subject {
        self.subject
    }

    /// The cost of one unit.
    pub const fn cost(&self) -> u64 {
        self.cost
    }

    /// Whether the cost was consumed, or is held by a [reservation](crate::Grant).
    pub const fn is_consumed(&self) -> bool {
        self.consumed
    }

    /// Whether the subject is anonymous.
    pub const fn is_anonymous(&self) -> bool {
        self.anonymous
    }

    /// Whether it was decided on an overflow bucket, which new subjects share when there are too many. A
    /// [refund](crate::Ending::Refund) does not return units to such a bucket, except for slots of concurrency limits.
    pub const fn is_overflowed(&self) -> bool {
        self.overflowed
    }

    /// Whether it is a shadow check that the store could not decide, such as on an unreadable state. Its outcome means nothing then.
    pub const fn is_skipped(&self) -> bool {
        self.skipped
    }

    /// Whether its outcome has a limit and a remaining amount. A penalty has none: it blocks whatever a request costs.
    pub const fn has_amount(&self) -> bool {
        !matches!(self.algorithm, Algorithm::Penalty)
    }

    /// Admitted or not, with limit, remaining, retry, reset and delay.
    pub const fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// The retry for comparison: a permanent denial is the longest.
    pub(super) fn retry(&self) -> Duration {
        if self.outcome.admitted { Duration::ZERO } else { self.outcome.retry_after.unwrap_or(Duration::MAX) }
    }

    /// When a denied request could proceed. In a leaky bucket that is the next free slot, whenever the request is admitted: the
    /// time until the bucket is empty.
    pub(super) fn proceeds_after(&self) -> Duration {
        if self.algorithm == Algorithm::LeakyBucket { self.outcome.reset_after } else { self.retry() }
    }

    /// How much an admitting check restricts further requests, the most restrictive first. Slots come back when requests end, so a
    /// concurrency limit is named only if nothing else is limited.
    pub(super) fn room(&self) -> (u8, u64) {
        let rank = match self.algorithm {
            Algorithm::Concurrency => 1,
            Algorithm::Penalty => 2,
            _ => 0,
        };
        (rank, self.further())
    }

    /// The number of further requests of the same cost that would pass.
    pub(super) fn further(&self) -> u64 {
        self.outcome.remaining.checked_div(self.cost).unwrap_or(u64::MAX)
    }
}
