//! `Decision`: the answer to a request, complete enough for any door to render. Pure.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use smol_str::SmolStr;

use crate::algorithm::{Calendar, Outcome, Place};
use crate::limit::Algorithm;
use crate::plan::{Check, Plan, Role};
use crate::receipt::Receipt;
use crate::spi::{CheckVerdict, Subject, Verdict};
use crate::{StoreErrorKind, Timestamp, Window};

/// The answer to a request.
///
/// A denied decision shows the check with the longest retry (a permanent one first), an allowed one the check that leaves
/// the fewest further requests of this kind. Shadow checks are never shown; they are listed apart.
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
#[must_use = "a decision that nobody reads limits nothing"]
pub struct Decision {
    granted: u64,
    decided_at: Timestamp,
    shown: Option<u16>,
    delay: Duration,
    checks: SmallVec<[CheckResult; 1]>,
    degraded: Option<StoreErrorKind>,
    /// Whether a rule applied about which answers must give nothing away, though it is not among the checks.
    guarded: bool,
    /// Further rules that share a check through a budget.
    sharing: Vec<Sharing>,
}

/// When to come back while the store fails; nobody knows better.
pub(crate) const RETRY_AFTER_FAILURE: Duration = Duration::from_secs(1);

/// A rule whose cost is part of a check that is named after another: both share a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sharing {
    /// The place of the check.
    pub(crate) check: usize,
    pub(crate) rule: SmolStr,
    pub(crate) cost: u64,
}

/// What one check of a plan says, and what it is about.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "facts that have nothing to do with each other")]
pub struct CheckResult {
    pub(crate) rule: SmolStr,
    pub(crate) limit_name: SmolStr,
    /// None for most, which costs nothing to copy.
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
    pub(crate) place: Place,
    pub(crate) outcome: Outcome,
}

impl Decision {
    /// Makes one answer of what the store says to `plan`.
    #[inline(always)]
    pub fn new(plan: &Plan<'_>, verdict: &Verdict) -> Self {
        let (granted, decided_at) = (verdict.granted(), verdict.decided_at());
        let sharing = plan.sharing().to_vec();
        if let ([check], [judged]) = (plan.checks(), verdict.checks()) {
            let enforced = check.gate().role() != Role::Shadow;
            return Self {
                granted,
                decided_at,
                shown: enforced.then_some(0),
                delay: if enforced && granted > 0 { judged.outcome.delay } else { Duration::ZERO },
                checks: SmallVec::from_buf([CheckResult::new(check, judged)]),
                degraded: None,
                guarded: false,
                sharing,
            };
        }
        let checks: SmallVec<[CheckResult; 1]> =
            plan.checks().iter().zip(verdict.checks()).map(|(check, judged)| CheckResult::new(check, judged)).collect();
        let enforced = checks.iter().filter(|check| granted > 0 && check.role != Role::Shadow);
        let delay = enforced.map(|check| check.outcome.delay).max().unwrap_or_default();
        let shown = most_restrictive(&checks, granted > 0);
        Self { granted, decided_at, shown, delay, checks, degraded: None, guarded: false, sharing }
    }

    /// The same decision, made without the store, since that failed.
    pub(crate) fn degraded_by(mut self, kind: StoreErrorKind, guarded: bool) -> Self {
        (self.degraded, self.guarded) = (Some(kind), guarded);
        self
    }

    /// Why it was decided without the store: how that failed. None if the store decided, which is the usual case.
    ///
    /// Such a decision knows only what this instance has let pass in the meantime: its numbers are those of the instance's
    /// share, which doors do not show, and its [receipt](Self::into_receipt) is empty.
    pub const fn degraded(&self) -> Option<StoreErrorKind> {
        self.degraded
    }

    /// Whether the request passes.
    pub const fn is_allowed(&self) -> bool {
        self.granted > 0
    }

    /// How many units were granted: for [`take_up_to`](crate::Limiter::take_up_to), otherwise 1 or 0.
    pub const fn granted(&self) -> u64 {
        self.granted
    }

    /// When it was decided, by the clock of the store.
    pub const fn decided_at(&self) -> Timestamp {
        self.decided_at
    }

    /// How long the request must be held before it goes on.
    pub const fn delay(&self) -> Duration {
        self.delay
    }

    /// The check to show: the most restrictive one. None if no rule matched, or only shadow rules did.
    pub fn shown(&self) -> Option<&CheckResult> {
        self.checks.get(usize::from(self.shown?))
    }

    /// The rule of the check that is shown.
    pub fn rule(&self) -> Option<&str> {
        self.shown().map(CheckResult::rule)
    }

    /// The kind of limit of the check that is shown.
    pub fn algorithm(&self) -> Option<Algorithm> {
        self.shown().map(CheckResult::algorithm)
    }

    /// Whom the check that is shown counts, hashed.
    pub fn subject(&self) -> Option<Subject> {
        self.shown().map(CheckResult::subject)
    }

    /// The largest cost that the check that is shown could ever admit.
    pub fn limit(&self) -> Option<u64> {
        self.shown().map(|check| check.outcome.limit)
    }

    /// The largest cost that the check that is shown would admit right after this decision.
    pub fn remaining(&self) -> Option<u64> {
        self.shown().map(|check| check.outcome.remaining)
    }

    /// The time until the check that is shown cannot be told from a fresh one.
    pub fn reset_after(&self) -> Option<Duration> {
        self.shown().map(|check| check.outcome.reset_after)
    }

    /// The time after which the same request passes if nothing else happens. None if it passed, or never will.
    pub fn retry_after(&self) -> Option<Duration> {
        if self.is_allowed() {
            return None;
        }
        // What is more than the share of one instance may be less than the whole limit, once the store is back.
        self.shown()?.outcome.retry_after.or_else(|| self.degraded.map(|_| RETRY_AFTER_FAILURE))
    }

    /// For a denied request: the time after which it could be on its way, the delay of a leaky bucket included.
    pub(crate) fn served_after(&self) -> Duration {
        let denying = self.checks.iter().filter(|check| check.role != Role::Shadow && !check.outcome.admitted);
        denying.map(CheckResult::served_after).max().unwrap_or_default()
    }

    /// Denied, and no waiting helps: the cost is above what a limit can ever admit.
    pub fn is_permanent(&self) -> bool {
        let permanent = |check: &CheckResult| check.outcome.is_permanent();
        !self.is_allowed() && self.degraded.is_none() && self.shown().is_some_and(permanent)
    }

    /// Whether a rule applied about which answers must give nothing away.
    pub fn is_security(&self) -> bool {
        self.guarded || self.checks.iter().any(|check| check.security && check.role != Role::Shadow)
    }

    /// What every check says, in the order of the rules.
    pub fn checks(&self) -> &[CheckResult] {
        &self.checks
    }

    /// The rules in shadow that would have rejected the request.
    pub fn shadow_would_reject(&self) -> impl Iterator<Item = &str> {
        let rejecting = self.checks.iter().filter(|check| check.role == Role::Shadow && !check.outcome.admitted);
        // Several limits of one rule stand side by side; the rule is named once.
        let mut last = None;
        rejecting.map(CheckResult::rule).filter(move |rule| last.replace(*rule) != Some(*rule))
    }

    /// What was consumed and where, to give it back later. A denied decision has an empty one, and so has a
    /// [degraded](Self::degraded) one. There is one for each
    /// decision, which is used up by it, since nothing may be given back twice.
    pub fn into_receipt(self) -> Receipt {
        self.consumed()
    }

    pub(crate) fn consumed(&self) -> Receipt {
        if self.degraded.is_some() {
            return Receipt::empty();
        }
        // What costs nothing consumed nothing, but it may turn out to have cost something.
        let free = |check: &CheckResult| check.cost == 0 && self.is_allowed() && check.role != Role::Shadow;
        let taken = self.checks.iter().enumerate().filter(|(_, check)| check.consumed || free(check));
        Receipt::new(self.granted.max(1), taken, &self.sharing)
    }

    /// The same decision with no units granted.
    pub(crate) fn without_units(mut self) -> Self {
        self.granted = 0;
        self
    }
}

impl CheckResult {
    #[inline(always)]
    fn new(check: &Check<'_>, judged: &CheckVerdict) -> Self {
        let gate = check.gate();
        Self {
            rule: gate.shared_rule().clone(),
            limit_name: gate.shared_limit_name().clone(),
            plan: gate.shared_plan(),
            security: check.is_security(),
            window: gate.window(),
            algorithm: gate.limit().algorithm(),
            role: gate.role(),
            subject: check.key().subject(),
            partition: check.key().partition(),
            cost: check.cost(),
            consumed: judged.consumed,
            anonymous: check.is_anonymous(),
            overflowed: judged.overflowed,
            place: judged.place,
            outcome: judged.outcome,
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

    /// The plan whose limit it is, often empty.
    pub fn plan(&self) -> &str {
        self.plan.as_deref().unwrap_or_default()
    }

    /// Whether answers must give nothing away about it.
    pub const fn is_security(&self) -> bool {
        self.security
    }

    /// The window in which the whole limit comes back; of a bucket, the time from empty to full, rounded up.
    pub const fn window(&self) -> Window {
        Window::of(self.window)
    }

    /// The kind of limit.
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Its role in the plan.
    pub const fn role(&self) -> Role {
        self.role
    }

    /// Whom it counts, hashed.
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

    /// Whether nobody vouches for whom it counts.
    pub const fn is_anonymous(&self) -> bool {
        self.anonymous
    }

    /// Whether it was judged on an overflow bucket, which new subjects share when there are too many, and not on one of its
    /// own. What it took there is not given back by a [refund](crate::Limiter::refund): nobody knows who would get it.
    pub const fn is_overflowed(&self) -> bool {
        self.overflowed
    }

    /// Admitted or not, with limit, remaining, retry, reset and delay.
    pub const fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// The retry as something to compare: a permanent denial is the longest.
    fn retry(&self) -> Duration {
        if self.outcome.admitted { Duration::ZERO } else { self.outcome.retry_after.unwrap_or(Duration::MAX) }
    }

    /// The next free slot of a leaky bucket stays where it is until it comes: whenever the request is admitted, it leaves
    /// then, which is when the bucket would be as at the beginning.
    fn served_after(&self) -> Duration {
        if self.algorithm == Algorithm::LeakyBucket { self.outcome.reset_after } else { self.retry() }
    }

    /// How many further requests of the same cost would pass.
    fn further(&self) -> u64 {
        self.outcome.remaining.checked_div(self.cost).unwrap_or(u64::MAX)
    }
}

/// The index of the check to show. A group speaks through its most permissive member; ties go to the first.
fn most_restrictive(checks: &[CheckResult], allowed: bool) -> Option<u16> {
    let speaks = |index: &usize| match checks[*index].role {
        Role::Enforced => true,
        Role::Shadow => false,
        Role::AnyOf(group) => {
            let members = (0..checks.len()).filter(|member| checks[*member].role == Role::AnyOf(group));
            let speaker = if allowed {
                members.rev().max_by_key(|member| checks[*member].further())
            } else {
                members.min_by_key(|member| checks[*member].retry())
            };
            speaker == Some(*index)
        }
    };
    let mut speakers = (0..checks.len()).filter(speaks);
    let shown = if allowed {
        speakers.min_by_key(|index| checks[*index].further())
    } else {
        // `max_by_key` keeps the last of equals, and file order wants the first.
        let first = speakers.next();
        first.map(|first| {
            speakers.fold(first, |best, next| if checks[next].retry() > checks[best].retry() { next } else { best })
        })
    };
    shown.and_then(|index| u16::try_from(index).ok())
}
