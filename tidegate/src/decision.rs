//! `Decision`: the result of a request, with everything that a front door needs for its response.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use smol_str::SmolStr;

use crate::algorithm::{Calendar, Outcome, TakePosition};
use crate::limit::Algorithm;
use crate::plan::{Check, Plan, Role};
use crate::receipt::Receipt;
use crate::spi::{CheckVerdict, Subject, Verdict};
use crate::{StoreErrorKind, Timestamp, Window};

/// The result of a request.
///
/// Its numbers are those of the most restrictive check: for a denial the one with the longest retry, otherwise the one that leaves
/// the fewest further requests of this kind. Shadow checks do not count; [`shadow_would_reject`](Self::shadow_would_reject) lists
/// them.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Algorithm, Limit, Limiter, ManualClock, MemoryStore, Rate, Request, Rule, RuleSet};
///
/// let rules = RuleSet::new([
///     Rule::new("second", Limit::token_bucket(2, Rate::per_second(1)?)?),
///     Rule::new("minute", Limit::fixed_window(100, Duration::from_secs(60))?),
/// ])?;
/// let limiter = Limiter::new(rules, MemoryStore::new().with_clock(ManualClock::default()));
/// let allowed = limiter.check_now(&Request::new(""));
/// assert_eq!((allowed.rule(), allowed.limit(), allowed.remaining()), (Some("second"), Some(2), Some(1)));
/// assert_eq!(allowed.reset_after(), Some(Duration::from_secs(1)));
///
/// let denied = limiter.check_now(&Request::new("").with_cost(2));
/// assert_eq!((denied.rule(), denied.algorithm()), (Some("second"), Some(Algorithm::TokenBucket)));
/// assert_eq!(denied.retry_after(), Some(Duration::from_secs(1)));
/// assert_eq!(denied.checks()[1].outcome().remaining, 99);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "a decision has no effect unless it is checked"]
pub struct Decision {
    granted: u64,
    decided_at: Timestamp,
    most_restrictive: Option<u16>,
    delay: Duration,
    checks: SmallVec<[CheckResult; 1]>,
    degraded: Option<StoreErrorKind>,
    /// Whether a security rule applied that is not among the checks.
    security: bool,
    /// Further rules that share a check through a budget.
    budget_shares: Vec<BudgetShare>,
}

/// When to retry while the store fails.
pub(crate) const RETRY_AFTER_FAILURE: Duration = Duration::from_secs(1);

/// The cost of a rule within a check of another rule with the same budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BudgetShare {
    /// The index of the check.
    pub(crate) check: usize,
    pub(crate) rule: SmolStr,
    pub(crate) cost: u64,
}

/// The result of one check, with its rule, limit and subject.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
pub struct CheckResult {
    pub(crate) rule: SmolStr,
    pub(crate) limit_name: SmolStr,
    /// `None` for most rules.
    pub(crate) plan: Option<Arc<str>>,
    pub(crate) security: bool,
    pub(crate) window: Calendar,
    pub(crate) algorithm: Algorithm,
    pub(crate) role: Role,
    pub(crate) subject: Subject,
    pub(crate) partition: u16,
    pub(crate) cost: u64,
    pub(crate) consumed: bool,
    pub(crate) anonymous: bool,
    pub(crate) overflowed: bool,
    pub(crate) position: TakePosition,
    pub(crate) outcome: Outcome,
}

impl Decision {
    /// The decision from the verdict of a store on `plan`.
    #[inline(always)]
    pub fn new(plan: &Plan<'_>, verdict: &Verdict) -> Self {
        let (granted, decided_at) = (verdict.granted(), verdict.decided_at());
        let budget_shares = plan.budget_shares().to_vec();
        if let ([check], [result]) = (plan.checks(), verdict.checks()) {
            let enforced = check.gate().role() != Role::Shadow;
            return Self {
                granted,
                decided_at,
                most_restrictive: enforced.then_some(0),
                delay: if enforced && granted > 0 { result.outcome.delay } else { Duration::ZERO },
                checks: SmallVec::from_buf([CheckResult::new(check, result)]),
                degraded: None,
                security: false,
                budget_shares,
            };
        }
        let checks: SmallVec<[CheckResult; 1]> =
            plan.checks().iter().zip(verdict.checks()).map(|(check, result)| CheckResult::new(check, result)).collect();
        let enforced = checks.iter().filter(|check| granted > 0 && check.role != Role::Shadow);
        let delay = enforced.map(|check| check.outcome.delay).max().unwrap_or_default();
        let most_restrictive = most_restrictive_index(&checks, granted > 0);
        Self { granted, decided_at, most_restrictive, delay, checks, degraded: None, security: false, budget_shares }
    }

    /// Marks a decision that was made without the store. `security` is whether a security rule applied.
    pub(crate) fn degraded_by(mut self, kind: StoreErrorKind, security: bool) -> Self {
        (self.degraded, self.security) = (Some(kind), security);
        self
    }

    /// How the store failed, if the decision was made without it.
    ///
    /// The numbers of such a decision are those of this instance alone, which front doors do not show, and its
    /// [receipt](Self::into_receipt) is empty.
    pub const fn degraded(&self) -> Option<StoreErrorKind> {
        self.degraded
    }

    /// Whether the request passes.
    pub const fn is_allowed(&self) -> bool {
        self.granted > 0
    }

    /// The number of units granted. Without [`take_up_to`](crate::Limiter::take_up_to) it is 1 or 0.
    pub const fn granted(&self) -> u64 {
        self.granted
    }

    /// The time of the decision, by the clock of the store.
    pub const fn decided_at(&self) -> Timestamp {
        self.decided_at
    }

    /// How long the request must wait before it proceeds.
    pub const fn delay(&self) -> Duration {
        self.delay
    }

    /// The most restrictive check; `None` if no rule matched, or only shadow rules did.
    pub fn most_restrictive(&self) -> Option<&CheckResult> {
        self.checks.get(usize::from(self.most_restrictive?))
    }

    /// The rule of the most restrictive check.
    pub fn rule(&self) -> Option<&str> {
        self.most_restrictive().map(CheckResult::rule)
    }

    /// The kind of limit of the most restrictive check.
    pub fn algorithm(&self) -> Option<Algorithm> {
        self.most_restrictive().map(CheckResult::algorithm)
    }

    /// The subject of the most restrictive check, hashed.
    pub fn subject(&self) -> Option<Subject> {
        self.most_restrictive().map(CheckResult::subject)
    }

    /// The largest cost that the most restrictive check can ever admit.
    pub fn limit(&self) -> Option<u64> {
        self.most_restrictive().map(|check| check.outcome.limit)
    }

    /// The largest cost that the most restrictive check would admit right after this decision.
    pub fn remaining(&self) -> Option<u64> {
        self.most_restrictive().map(|check| check.outcome.remaining)
    }

    /// The time until the state of the most restrictive check is equivalent to a fresh one.
    pub fn reset_after(&self) -> Option<Duration> {
        self.most_restrictive().map(|check| check.outcome.reset_after)
    }

    /// The time after which the same request passes if nothing else happens; `None` if it passed or never passes.
    pub fn retry_after(&self) -> Option<Duration> {
        if self.is_allowed() {
            return None;
        }
        // A cost above the share of this instance may pass once the store is back.
        self.most_restrictive()?.outcome.retry_after.or_else(|| self.degraded.map(|_| RETRY_AFTER_FAILURE))
    }

    /// For a denied request: the time after which it could proceed, including the delay of a leaky bucket.
    pub(crate) fn proceeds_after(&self) -> Duration {
        let denying = self.checks.iter().filter(|check| check.role != Role::Shadow && !check.outcome.admitted);
        denying.map(CheckResult::proceeds_after).max().unwrap_or_default()
    }

    /// Whether the request is denied and no waiting helps: its cost is above a limit.
    pub fn is_permanent(&self) -> bool {
        let permanent = |check: &CheckResult| check.outcome.is_permanent();
        !self.is_allowed() && self.degraded.is_none() && self.most_restrictive().is_some_and(permanent)
    }

    /// Whether a security rule applied, so that responses must not contain details.
    pub fn is_security(&self) -> bool {
        self.security || self.checks.iter().any(|check| check.security && check.role != Role::Shadow)
    }

    /// The result of every check, in the order of the rules.
    pub fn checks(&self) -> &[CheckResult] {
        &self.checks
    }

    /// The shadow rules that would have rejected the request.
    pub fn shadow_would_reject(&self) -> impl Iterator<Item = &str> {
        let rejecting = self.checks.iter().filter(|check| check.role == Role::Shadow && !check.outcome.admitted);
        // The limits of one rule are adjacent; the rule is named once.
        let mut last = None;
        rejecting.map(CheckResult::rule).filter(move |rule| last.replace(*rule) != Some(*rule))
    }

    /// The receipt for a later refund or settlement. It is empty for a denied or [degraded](Self::degraded) decision. It takes the
    /// decision, so that nothing is refunded twice.
    pub fn into_receipt(self) -> Receipt {
        self.consumed()
    }

    pub(crate) fn consumed(&self) -> Receipt {
        if self.degraded.is_some() {
            return Receipt::empty();
        }
        // A check without a cost consumed nothing, but a settlement may charge it.
        let free = |check: &CheckResult| check.cost == 0 && self.is_allowed() && check.role != Role::Shadow;
        let taken = self.checks.iter().enumerate().filter(|(_, check)| check.consumed || free(check));
        Receipt::new(self.granted.max(1), taken, &self.budget_shares)
    }

    /// The same decision with no units granted.
    pub(crate) fn without_units(mut self) -> Self {
        self.granted = 0;
        self
    }
}

impl CheckResult {
    #[inline(always)]
    fn new(check: &Check<'_>, result: &CheckVerdict) -> Self {
        let gate = check.gate();
        Self {
            rule: gate.rule_smol_str().clone(),
            limit_name: gate.limit_name_smol_str().clone(),
            plan: gate.plan_arc(),
            security: check.is_security(),
            window: gate.window(),
            algorithm: gate.limit().algorithm(),
            role: gate.role(),
            subject: check.key().subject(),
            partition: check.key().partition(),
            cost: check.cost(),
            consumed: result.consumed,
            anonymous: check.is_anonymous(),
            overflowed: result.overflowed,
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

    /// Whether the cost was consumed.
    pub const fn is_consumed(&self) -> bool {
        self.consumed
    }

    /// Whether the subject is unauthenticated.
    pub const fn is_anonymous(&self) -> bool {
        self.anonymous
    }

    /// Whether it was decided on an overflow bucket, which new subjects share when there are too many. A
    /// [refund](crate::Limiter::refund) does not return units to such a bucket.
    pub const fn is_overflowed(&self) -> bool {
        self.overflowed
    }

    /// Admitted or not, with limit, remaining, retry, reset and delay.
    pub const fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// The retry for comparison: a permanent denial is the longest.
    fn retry(&self) -> Duration {
        if self.outcome.admitted { Duration::ZERO } else { self.outcome.retry_after.unwrap_or(Duration::MAX) }
    }

    /// When a denied request could proceed. In a leaky bucket that is the next free slot, whenever the request is admitted: the
    /// time until the bucket is empty.
    fn proceeds_after(&self) -> Duration {
        if self.algorithm == Algorithm::LeakyBucket { self.outcome.reset_after } else { self.retry() }
    }

    /// The number of further requests of the same cost that would pass.
    fn further(&self) -> u64 {
        self.outcome.remaining.checked_div(self.cost).unwrap_or(u64::MAX)
    }
}

/// The index of the most restrictive check. A group counts as its most permissive member; the first of equals wins.
fn most_restrictive_index(checks: &[CheckResult], allowed: bool) -> Option<u16> {
    let counts = |index: &usize| match checks[*index].role {
        Role::Enforced => true,
        Role::Shadow => false,
        Role::AnyOf(group) => {
            let members = (0..checks.len()).filter(|member| checks[*member].role == Role::AnyOf(group));
            let representative = if allowed {
                members.rev().max_by_key(|member| checks[*member].further())
            } else {
                members.min_by_key(|member| checks[*member].retry())
            };
            representative == Some(*index)
        }
    };
    let mut candidates = (0..checks.len()).filter(counts);
    let index = if allowed {
        candidates.min_by_key(|index| checks[*index].further())
    } else {
        // `max_by_key` would return the last of equals.
        let first = candidates.next();
        first.map(|first| {
            candidates.fold(first, |best, next| if checks[next].retry() > checks[best].retry() { next } else { best })
        })
    };
    index.and_then(|index| u16::try_from(index).ok())
}
