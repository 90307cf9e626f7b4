//! `Plan`: the checks of one request, and how their results combine.
//!
//! `tidegate-redis/src/scripts/decide_batch.lua` contains the same logic in Lua.
//!
//! Every check is evaluated on the current state. The units granted are the least that an enforced check admits, where an any-of group
//! counts as its best member and shadow checks do not count; if any are granted, all checks are written. Keys of a plan differ, so no
//! check sees what another one consumed.

mod check;
mod combine;
mod counted_subject;
mod gate;
mod lease_owner;
mod origin;
mod penalties;
mod plan_error;
mod plan_extra;
mod reservation_terms;

use std::time::Duration;

use smallvec::SmallVec;
use smol_str::SmolStr;

pub use check::Check;
pub use counted_subject::CountedSubject;
pub use gate::{Gate, Role};
pub use lease_owner::LeaseOwner;
pub use origin::Origin;
pub use plan_error::PlanError;
use plan_extra::PlanExtra;
pub use reservation_terms::ReservationTerms;

use crate::algorithm::{HoldOp, Op, Take};
use crate::decision::BudgetShare;
use crate::key::Key;
use crate::limit::MAX_AMOUNT;
use crate::matcher::BodyUse;
use crate::{OnFailure, StoreError};

/// The largest number of checks in one plan, without shadow checks.
pub const MAX_CHECKS: usize = 32;

/// The largest number of shadow checks in one plan. Further ones are [left out](Plan::skipped_shadow).
pub const MAX_SHADOW_CHECKS: usize = 20;

/// The checks of one request, and how they combine.
#[derive(Clone, Debug)]
pub struct Plan<'r> {
    checks: SmallVec<[Check<'r>; 1]>,
    mode: PlanMode,
    max_units: u64,
    /// Microseconds.
    max_delay: u64,
    timeout: Option<Duration>,
    peek: bool,
    observed: bool,
    /// The number of requests that were merged.
    requests: u64,
    origin: Origin,
    /// Further rules that share a check through a budget.
    budget_shares: Vec<BudgetShare>,
    /// The shadow checks that were left out.
    skipped_shadow: Vec<&'r Gate>,
    /// The names of tenants for the ledger, with the index of a check.
    account_names: Vec<(usize, SmolStr)>,
    /// What few plans have, boxed so that the others stay small.
    extra: Option<Box<PlanExtra>>,
    body_use: BodyUse,
}

/// How the checks of a plan combine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanMode {
    /// If one check denies, none consumes.
    #[default]
    AllOrNothing,
    /// Each check consumes on its own, even if the request is denied, up to its limit.
    CountEach,
}

/// Building a plan
impl<'r> Plan<'r> {
    /// A plan of these checks, in this order. Their keys must differ. Shadow checks after the first [`MAX_SHADOW_CHECKS`] are
    /// [left out](Self::skipped_shadow).
    pub fn new(checks: impl IntoIterator<Item = Check<'r>>) -> Result<Self, PlanError> {
        let mut plan = Self::from_distinct(SmallVec::new());
        for check in checks {
            if plan.checks.iter().any(|earlier| earlier.key() == check.key()) {
                return Err(PlanError::SharedKey { rule: check.gate().rule().id.to_string() });
            }
            plan.add(check, false);
        }
        match plan.enforced().count() {
            checks if checks > MAX_CHECKS => Err(PlanError::TooManyChecks { checks }),
            _ => Ok(plan),
        }
    }

    #[inline(always)]
    pub(crate) fn from_distinct(checks: SmallVec<[Check<'r>; 1]>) -> Self {
        Self {
            checks,
            mode: PlanMode::AllOrNothing,
            max_units: 1,
            max_delay: u64::MAX,
            timeout: None,
            peek: false,
            observed: true,
            requests: 1,
            origin: Origin::default(),
            budget_shares: Vec::new(),
            skipped_shadow: Vec::new(),
            account_names: Vec::new(),
            extra: None,
            body_use: BodyUse::default(),
        }
    }

    #[inline(always)]
    pub(crate) const fn with_body_use(mut self, body_use: BodyUse) -> Self {
        self.body_use = body_use;
        self
    }

    /// Adds a check. If `may_be_shared`, its cost is added to an earlier check with the same key.
    #[inline]
    pub(crate) fn add(&mut self, check: Check<'r>, may_be_shared: bool) {
        let shared = self.checks.iter_mut().enumerate().find(|(_, other)| may_be_shared && other.key() == check.key());
        if let Some((index, other)) = shared {
            other.join(&check);
            self.budget_shares.push(BudgetShare {
                check: index,
                rule: check.gate().rule().id.clone(),
                cost: check.cost(),
            });
        } else if check.is_shadow() && self.shadow().count() >= MAX_SHADOW_CHECKS {
            self.skipped_shadow.push(check.gate());
        } else {
            if check.gate().limit().has_slots() {
                self.require_owner();
            }
            self.checks.push(check);
        }
    }

    /// Names the account of the check with this key for the ledger.
    pub(crate) fn name_account(&mut self, key: &Key<'_>, name: &str) {
        let index = self.checks.iter().position(|check| check.key() == key);
        self.account_names.extend(index.map(|index| (index, SmolStr::new(name))));
    }

    /// The names of tenants for the ledger, with the index of a check.
    pub(crate) fn account_names(&self) -> &[(usize, SmolStr)] {
        &self.account_names
    }

    /// Requests as many units as are left, up to `max_units` (at least one). Each costs the cost of its check.
    pub fn with_max_units(mut self, max_units: u64) -> Self {
        self.max_units = max_units.clamp(1, MAX_AMOUNT);
        self
    }

    /// Makes the plan a peek: a store decides it as usual but consumes nothing.
    pub const fn with_peek(mut self) -> Self {
        self.peek = true;
        self
    }

    /// Sets whether [observers](crate::spi::Observer) see the decision. A front end turns it off for its own bookkeeping. They
    /// never see a peek, and always see a failure of the store.
    pub const fn with_observed(mut self, observed: bool) -> Self {
        self.observed = observed;
        self
    }

    /// Sets what happens while the store fails or this instance is overloaded, for all checks, in place of what their rules say.
    pub fn with_on_failure(mut self, on_failure: OnFailure) -> Self {
        for check in &mut self.checks {
            *check = check.with_policy(on_failure);
        }
        self
    }

    /// Sets how the checks combine.
    pub fn with_mode(mut self, mode: PlanMode) -> Self {
        self.mode = mode;
        self
    }

    /// Denies requests that would have to wait longer than this. Zero for a front end that cannot delay a request.
    pub fn with_max_delay(mut self, delay: Duration) -> Self {
        self.max_delay = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        self
    }

    /// Sets the time that the store has for a decision. Stores have a timeout of their own; the shorter one applies.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(self.timeout.map_or(timeout, |known| known.min(timeout)));
        self
    }

    /// Names the front end and the method of the request, for [observers](crate::spi::Observer).
    pub const fn with_origin(mut self, origin: Origin) -> Self {
        self.origin = origin;
        self
    }
}

/// Reading a plan
impl<'r> Plan<'r> {
    /// Whether observers see the decision.
    pub(crate) const fn is_observed(&self) -> bool {
        self.observed && !self.peek
    }

    /// Whether the plan is a peek: a store decides it without consuming anything.
    #[inline(always)]
    pub const fn is_peek(&self) -> bool {
        self.peek
    }

    /// The checks, in order.
    pub fn checks(&self) -> &[Check<'r>] {
        &self.checks
    }

    /// The name of the tenant whose account the check with this index counts in, if its rule has it kept in the ledger.
    pub fn account_name(&self, check: usize) -> Option<&str> {
        self.account_names.iter().find(|(index, _)| *index == check).map(|(_, name)| name.as_str())
    }

    /// How the checks depend on the body of the request.
    pub const fn body_use(&self) -> BodyUse {
        self.body_use
    }

    /// The cost of the request under a rule, without those of other rules that share its budget. `None` if the rule does not apply.
    pub fn rule_cost(&self, rule: &str) -> Option<u64> {
        let shares_of = |index: usize| self.budget_shares.iter().filter(move |share| share.check == index);
        let own =
            self.checks.iter().enumerate().filter(|(_, check)| check.gate().rule().id == rule).map(|(index, check)| {
                check.cost().saturating_sub(shares_of(index).map(|share| share.cost).fold(0, u64::saturating_add))
            });
        let shared = self.budget_shares.iter().filter(|share| share.rule == rule).map(|share| share.cost);
        own.chain(shared).max()
    }

    /// How the checks combine.
    pub const fn mode(&self) -> PlanMode {
        self.mode
    }

    /// Whether the request is refused after the store failed with `error`, because a rule is closed then. True for a plan with more
    /// than [`MAX_CHECKS`], which no store decides.
    pub fn fails_closed(&self, error: &StoreError) -> bool {
        self.is_too_large() || self.policies(error).any(|(_, policy)| policy == OnFailure::Closed)
    }

    /// What each rule requires after the store failed with `error`, in the order of the checks. Without shadow rules.
    pub fn policies(&self, error: &StoreError) -> impl Iterator<Item = (&str, OnFailure)> {
        self.enforced().map(|check| (check.gate().rule().id.as_str(), check.policy(error)))
    }

    /// Whether there are more than [`MAX_CHECKS`], not counting shadow checks. No store decides such a plan.
    pub fn is_too_large(&self) -> bool {
        self.checks.len() > MAX_CHECKS && self.enforced().count() > MAX_CHECKS
    }

    /// The checks that affect the request.
    pub(crate) fn enforced(&self) -> impl Iterator<Item = &Check<'r>> {
        self.checks.iter().filter(|check| !check.is_shadow())
    }

    /// The shadow checks.
    pub(crate) fn shadow(&self) -> impl Iterator<Item = &Check<'r>> {
        self.checks.iter().filter(|check| check.is_shadow())
    }

    /// The shadow checks that were left out, because there are more than [`MAX_SHADOW_CHECKS`].
    pub fn skipped_shadow(&self) -> &[&'r Gate] {
        &self.skipped_shadow
    }

    /// The same plan with other checks, all or nothing. Their keys must differ.
    pub(crate) fn with_checks<'c>(&self, checks: impl Iterator<Item = Check<'c>>) -> Plan<'c> {
        let Self { max_units, max_delay, peek, observed, requests, origin, .. } = *self;
        // Plans with a problem have no checks that others could be made of.
        let extra = self.extra.clone();
        Plan { max_units, max_delay, peek, observed, requests, origin, extra, ..Plan::from_distinct(checks.collect()) }
    }

    /// The time that the store has for the decision, if set.
    pub const fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// The front end and the method of the request.
    pub const fn origin(&self) -> Origin {
        self.origin
    }

    /// The number of requests: one, or more after [`merge`](Self::merge).
    pub(crate) const fn requests(&self) -> u64 {
        self.requests
    }

    /// Whether responses must not contain details.
    pub(crate) fn is_security(&self) -> bool {
        self.enforced().any(Check::is_security)
    }

    /// The ids of the rules of its checks, also of those that share a check through a budget. One with several limits comes several times.
    pub fn rule_ids(&self) -> impl Iterator<Item = &str> {
        let shared = self.budget_shares.iter().map(|share| &*share.rule);
        self.checks().iter().map(|check| check.gate().rule().id.as_str()).chain(shared)
    }

    pub(crate) fn budget_shares(&self) -> &[BudgetShare] {
        &self.budget_shares
    }

    /// The longest acceptable delay; `None` for any.
    pub const fn max_delay(&self) -> Option<Duration> {
        match self.max_delay {
            u64::MAX => None,
            micros => Some(Duration::from_micros(micros)),
        }
    }

    /// The largest number of units requested.
    pub const fn max_units(&self) -> u64 {
        self.max_units
    }

    /// The take of `check` for `units`.
    #[inline(always)]
    pub fn take(&self, check: &Check<'_>, units: u64) -> Take {
        let owner = self.lease_owner().map_or(0, LeaseOwner::number);
        Take { cost: check.cost(), units, max_delay_micros: self.max_delay, owner }
    }
}

/// Reservations
impl Plan<'_> {
    /// The operation of `check` for `units`: a take, or in a reservation a hold.
    #[inline(always)]
    pub fn op(&self, check: &Check<'_>, units: u64) -> Op {
        let take = self.take(check, units);
        match self.reservation() {
            Some(terms) if terms.holds(check) => Op::Hold(HoldOp::Reserve { take, ttl_micros: terms.ttl_micros() }),
            _ => Op::Take(take),
        }
    }

    /// Whether what `check` admits is a hold.
    #[inline(always)]
    pub fn is_hold(&self, check: &Check<'_>) -> bool {
        self.reservation().is_some_and(|terms| terms.holds(check))
    }

    /// Whether a repeated reservation finds under `check` what it took before: a hold, a slot or a block, not a take that has no owner.
    pub(crate) fn keeps_owner(&self, check: &Check<'_>) -> bool {
        self.is_hold(check) || check.gate().limit().has_slots() || check.gate().is_penalty()
    }
}

/// Combining
impl Plan<'_> {
    /// The units that the whole plan grants; 0 is a denial. `room` returns the units that a check admits, by index.
    #[inline(always)]
    pub fn granted(&self, room: impl Fn(usize) -> u64) -> u64 {
        let mut granted = self.max_units;
        for (index, check) in self.checks.iter().enumerate() {
            granted = match check.gate().role() {
                Role::Enforced => granted.min(room(index)),
                Role::Shadow => granted,
                Role::AnyOf(group) => {
                    let members = self.checks.iter().enumerate().filter(|(_, c)| c.gate().role() == Role::AnyOf(group));
                    granted.min(members.map(|(member, _)| room(member)).max().unwrap_or(0))
                }
            };
        }
        granted
    }

    /// Whether `check` consumes. `admitted` is whether it admits the granted units, or one if none were granted.
    #[inline(always)]
    pub fn consumes(&self, check: &Check<'_>, admitted: bool, granted: u64) -> bool {
        admitted && (check.cost() > 0 || self.is_hold(check)) && (granted > 0 || self.counts_denied(check))
    }

    /// Whether `check` counts denied requests. They hold no slots.
    #[inline(always)]
    pub fn counts_denied(&self, check: &Check<'_>) -> bool {
        self.mode == PlanMode::CountEach && check.gate().role() != Role::Shadow && !check.gate().limit().has_slots()
    }
}
