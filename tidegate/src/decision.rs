//! `Decision`: the result of a request, with everything that a front end needs for its response.

mod check_result;
mod grant;

use std::time::Duration;

use smallvec::SmallVec;
use smol_str::SmolStr;

pub use check_result::CheckResult;

use crate::algorithm::concurrency::RETRY;
use crate::http::ErrorFormat;
use crate::limit::Algorithm;
use crate::plan::{Gate, Plan, Role};
use crate::spi::{HoldRefusal, KnownDenial, Subject, Verdict};
use crate::{RequestProblem, StoreErrorKind, Timestamp};

/// The result of a request.
///
/// Its numbers are those of the most restrictive check: for a denial the one with the longest retry, otherwise the one that leaves
/// the fewest further requests of this kind. Shadow checks do not count; [`shadow_would_reject`](Self::shadow_would_reject) lists
/// them.
///
/// ```
/// use std::time::Duration;
/// use tidegate::limits::Algorithm;
/// use tidegate::{Limit, Limiter, ManualClock, MemoryStore, Rate, Request, Rule, RuleSet};
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
    /// The index in the plan of the only check, if the denial was known without a call.
    known_denial: Option<u16>,
    /// Whether a security rule applied that is not among the checks.
    security: bool,
    /// The last format of the rules that applied, if some of them are not among the checks.
    error_format: Option<ErrorFormat>,
    /// Further rules that share a check through a budget.
    budget_shares: Vec<BudgetShare>,
    /// Why the request could not be judged.
    problem: Option<Box<RequestProblem>>,
    /// Why the reservation was refused.
    pub(crate) refusal: Option<HoldRefusal>,
    is_grant_taken: bool,
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
                checks: SmallVec::from_buf([CheckResult::new(plan, check, result)]),
                degraded: None,
                known_denial: None,
                security: false,
                error_format: None,
                budget_shares,
                problem: None,
                refusal: verdict.refusal(),
                is_grant_taken: false,
            };
        }
        let checks: SmallVec<[CheckResult; 1]> = plan
            .checks()
            .iter()
            .zip(verdict.checks())
            .map(|(check, result)| CheckResult::new(plan, check, result))
            .collect();
        let enforced = checks.iter().filter(|check| granted > 0 && check.role != Role::Shadow);
        let delay = enforced.map(|check| check.outcome.delay).max().unwrap_or_default();
        let most_restrictive = most_restrictive_index(&checks, granted > 0);
        Self {
            granted,
            decided_at,
            most_restrictive,
            delay,
            checks,
            degraded: None,
            known_denial: None,
            security: false,
            error_format: None,
            budget_shares,
            problem: None,
            refusal: verdict.refusal(),
            is_grant_taken: false,
        }
    }

    /// The decision on a request that cannot be judged: a denial without checks.
    pub(crate) fn refused(plan: &Plan<'_>, problem: RequestProblem) -> Self {
        let decision = Self::new(plan, &Verdict::new(Timestamp::default(), 0, []));
        Self { problem: Some(Box::new(problem)), error_format: plan.error_format(), ..decision }
    }

    /// The decision on `plan` by a denial that the store knows; `None` if the plan has no such check.
    pub(crate) fn from_known_denial(plan: &Plan<'_>, known: &KnownDenial) -> Option<Self> {
        let check = plan.checks().get(known.check)?;
        Some(Self {
            granted: 0,
            decided_at: known.decided_at,
            most_restrictive: Some(0),
            delay: Duration::ZERO,
            checks: SmallVec::from_buf([CheckResult::new(plan, check, &known.verdict)]),
            degraded: None,
            known_denial: u16::try_from(known.check).ok(),
            security: plan.is_security(),
            error_format: plan.error_format(),
            budget_shares: Vec::new(),
            problem: None,
            refusal: None,
            is_grant_taken: false,
        })
    }

    /// Marks a decision on `plan` whose checks were all made without the store.
    pub(crate) fn made_locally(mut self, kind: StoreErrorKind, plan: &Plan<'_>) -> Self {
        self.checks.iter_mut().for_each(|check| check.local = true);
        self.degraded_by(kind, plan)
    }

    /// Marks a decision on `plan` of which some checks were made without the store.
    pub(crate) fn degraded_by(mut self, kind: StoreErrorKind, plan: &Plan<'_>) -> Self {
        (self.degraded, self.security, self.error_format) = (Some(kind), plan.is_security(), plan.error_format());
        self
    }

    /// How the store failed, if the decision was made without it, or without it in part.
    ///
    /// The numbers of such a decision are those of this instance alone, which front ends do not show. What was consumed in its
    /// memory is not part of the [grant](Self::take_grant).
    pub const fn degraded(&self) -> Option<StoreErrorKind> {
        self.degraded
    }

    /// The index in the plan of the check that denies the request, if the store denied the same request a moment ago and was not
    /// asked again. It is then the only one of [`checks`](Self::checks).
    pub fn known_denial(&self) -> Option<usize> {
        self.known_denial.map(usize::from)
    }

    /// Why the request is denied without being judged, if that is so: its values have more than one reading. No limit is exceeded, and
    /// nothing was consumed; front ends answer with its [status](RequestProblem::status).
    pub fn problem(&self) -> Option<&RequestProblem> {
        self.problem.as_deref()
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

    /// The largest cost that the most restrictive check can ever admit; `None` for a penalty, which blocks every cost.
    pub fn limit(&self) -> Option<u64> {
        self.most_restrictive().filter(|check| check.has_amount()).map(|check| check.outcome.limit)
    }

    /// The largest cost that the most restrictive check would admit right after this decision; `None` for a penalty.
    pub fn remaining(&self) -> Option<u64> {
        self.most_restrictive().filter(|check| check.has_amount()).map(|check| check.outcome.remaining)
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

    /// Whether the request is denied until a slot of a concurrency limit is free, and not for longer by any other limit.
    pub(crate) fn is_denied_by_slots(&self) -> bool {
        let is_slot = |check: &CheckResult| {
            check.algorithm == Algorithm::Concurrency
                && check.role != Role::Shadow
                && check.outcome.retry_after.is_some()
        };
        self.retry_after().is_some_and(|retry| retry <= RETRY) && self.checks.iter().any(is_slot)
    }

    /// Whether the request is denied and no waiting helps: its cost is above a limit, or it has a [problem](Self::problem).
    pub fn is_permanent(&self) -> bool {
        if self.problem.is_some() {
            return true;
        }
        let permanent = |check: &CheckResult| check.outcome.is_permanent();
        !self.is_allowed() && self.degraded.is_none() && self.most_restrictive().is_some_and(permanent)
    }

    /// Whether a security rule applied, so that responses must not contain details.
    pub fn is_security(&self) -> bool {
        self.security || self.checks.iter().any(|check| check.security && check.role != Role::Shadow)
    }

    /// The format of the response to a denial: that of the rule that it names. A response that names none has the last one of all rules
    /// that applied, by which nobody learns which of them denied. `None` if they say nothing about it.
    pub fn error_format(&self) -> Option<ErrorFormat> {
        if let Some(check) = self.most_restrictive().filter(|_| !self.is_security()) {
            return check.error_format;
        }
        let enforced = self.checks.iter().filter(|check| check.role != Role::Shadow);
        enforced.map(|check| check.error_format).max().flatten().max(self.error_format)
    }

    /// Whether the request is admitted by the grace of a quota: more than its amount is used.
    pub fn is_in_grace(&self) -> bool {
        self.rules_in_grace().next().is_some()
    }

    /// The rules that admit the request by the grace of a quota.
    pub fn rules_in_grace(&self) -> impl Iterator<Item = &str> {
        let in_grace = |check: &&CheckResult| {
            self.is_allowed() && check.outcome.in_grace && check.role != Role::Shadow && !check.skipped
        };
        // The limits of one rule are adjacent; the rule is named once.
        let mut last = None;
        self.checks
            .iter()
            .filter(in_grace)
            .map(CheckResult::rule)
            .filter(move |rule| last.replace(*rule) != Some(*rule))
    }

    /// The result of every check, in the order of the rules.
    pub fn checks(&self) -> &[CheckResult] {
        &self.checks
    }

    pub(crate) fn checks_mut(&mut self) -> &mut [CheckResult] {
        &mut self.checks
    }

    /// The result of the check with this index in the plan. `None` if it was not decided, because another
    /// [denial was known](Self::known_denial), or if the decision is [degraded](Self::degraded).
    pub fn check(&self, index: usize) -> Option<&CheckResult> {
        let place = match self.known_denial() {
            Some(known) => (known == index).then_some(0)?,
            None => index,
        };
        self.checks.get(place).filter(|_| self.degraded.is_none())
    }

    /// The shadow rules that would have rejected the request.
    pub fn shadow_would_reject(&self) -> impl Iterator<Item = &str> {
        let rejecting =
            self.checks.iter().filter(|check| check.role == Role::Shadow && !check.skipped && !check.outcome.admitted);
        // The limits of one rule are adjacent; the rule is named once.
        let mut last = None;
        rejecting.map(CheckResult::rule).filter(move |rule| last.replace(*rule) != Some(*rule))
    }

    /// The shadow checks of `plan`, of which this is the decision, that were not decided: those that the plan
    /// [left out](Plan::skipped_shadow), those that the store could not decide, and all of them if the store was not asked or failed.
    pub fn skipped_shadow<'p>(&self, plan: &'p Plan<'_>) -> impl Iterator<Item = &'p Gate> {
        // Without the store, a decision has no shadow checks, and so fewer checks than a plan that has some.
        let by_store = self.checks.len() == plan.checks().len();
        let is_skipped = move |index: usize| !by_store || self.checks[index].skipped;
        let shadow = plan.checks().iter().enumerate().filter(|(_, check)| check.is_shadow());
        let undecided = shadow.filter(move |(index, _)| is_skipped(*index)).map(|(_, check)| check.gate());
        undecided.chain(plan.skipped_shadow().iter().copied())
    }

    /// The same decision with at least this delay.
    pub(crate) fn with_delay(mut self, delay: Duration) -> Self {
        self.delay = self.delay.max(delay);
        self
    }

    /// The same decision with no units granted.
    pub(crate) fn without_units(mut self) -> Self {
        self.granted = 0;
        self
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
        candidates.min_by_key(|index| checks[*index].room())
    } else {
        // `max_by_key` would return the last of equals.
        let first = candidates.next();
        first.map(|first| {
            candidates.fold(first, |best, next| if checks[next].retry() > checks[best].retry() { next } else { best })
        })
    };
    index.and_then(|index| u16::try_from(index).ok())
}
