//! `Plan`: the checks that one request must pass, and the arithmetic that makes one answer of them. Pure.
//!
//! The same few lines stand in Lua in `tidegate-redis/src/scripts/decide.lua`.

mod check;
mod gate;
mod origin;

use std::error::Error;
use std::fmt;
use std::time::Duration;

use smallvec::SmallVec;

pub use check::Check;
pub use gate::{Gate, Role};
pub use origin::Origin;

use crate::OnFailure;
use crate::algorithm::Take;
use crate::decision::Sharing;
use crate::limit::MAX_AMOUNT;

/// The most checks in one plan.
pub const MAX_CHECKS: usize = 32;

/// What the checks of one request are, and how they combine.
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
    /// How many requests it stands for.
    requests: u64,
    origin: Origin,
    /// Further rules that share a check through a budget; hardly ever any.
    sharing: Vec<Sharing>,
}

/// How the checks of a plan combine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanMode {
    /// If one denies, none consumes.
    #[default]
    AllOrNothing,
    /// Each counts on its own, and a denied request counts too, up to the limit.
    CountEach,
}

/// Why checks do not make a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    /// Two checks have the same key, so that one would see what the other took.
    SharedKey {
        /// The rule of the second check.
        rule: String,
    },
    /// More than [`MAX_CHECKS`].
    TooManyChecks {
        /// How many there were.
        checks: usize,
    },
}

/// Building a plan
impl<'r> Plan<'r> {
    /// A plan of these checks, in this order; their keys must differ.
    pub fn new(checks: impl IntoIterator<Item = Check<'r>>) -> Result<Self, PlanError> {
        let checks: SmallVec<[Check<'r>; 1]> = checks.into_iter().collect();
        if checks.len() > MAX_CHECKS {
            return Err(PlanError::TooManyChecks { checks: checks.len() });
        }
        for (index, check) in checks.iter().enumerate() {
            if checks[..index].iter().any(|earlier| earlier.key() == check.key()) {
                return Err(PlanError::SharedKey { rule: check.gate().rule().to_owned() });
            }
        }
        Ok(Self::from_distinct(checks))
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
            sharing: Vec::new(),
        }
    }

    /// Appends a check, whose cost is added to that of an earlier one with the same key, if there may be one.
    #[inline]
    pub(crate) fn add(&mut self, check: Check<'r>, may_be_shared: bool) {
        let shared = self.checks.iter_mut().enumerate().find(|(_, known)| may_be_shared && known.key() == check.key());
        match shared {
            Some((place, known)) => {
                known.join(&check);
                self.sharing.push(Sharing {
                    check: place,
                    rule: check.gate().shared_rule().clone(),
                    cost: check.cost(),
                });
            }
            None => self.checks.push(check),
        }
    }

    /// This plan and another as one: all or nothing over both. Where they share a key, the costs add up.
    pub fn merge(mut self, other: &Plan<'r>) -> Self {
        self.requests += other.requests;
        for (place, check) in other.checks.iter().enumerate() {
            let at = self.checks.iter().position(|known| known.key() == check.key()).unwrap_or(self.checks.len());
            let parts = || other.sharing.iter().filter(|part| part.check == place);
            // What its further rules cost is told by them; the rest is its own.
            let own = check.cost().saturating_sub(parts().map(|part| part.cost).fold(0, u64::saturating_add));
            self.add(check.with_cost(own), true);
            for part in parts() {
                self.checks[at].add_cost(part.cost);
                self.sharing.push(Sharing { check: at, ..part.clone() });
            }
        }
        self
    }

    /// Asks for as many units as there are, up to `most` (at least one), each at the cost of its check.
    pub fn with_max_units(mut self, max_units: u64) -> Self {
        self.max_units = max_units.clamp(1, MAX_AMOUNT);
        self
    }

    /// Makes the plan a peek: a store decides it as usual but consumes nothing.
    pub const fn with_peek(mut self) -> Self {
        self.peek = true;
        self
    }

    /// Sets whether [observers](crate::spi::Observer) see the decision. A front door turns it off for its own bookkeeping. They
    /// never see a peek, and always see a failure of the store.
    pub const fn with_observed(mut self, observed: bool) -> Self {
        self.observed = observed;
        self
    }

    /// Sets what happens while the store fails, for all checks, in place of what their rules say.
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

    /// Refuses what would have to wait longer than this: zero for a door that cannot hold a request.
    pub fn with_max_delay(mut self, delay: Duration) -> Self {
        self.max_delay = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        self
    }

    /// Leaves the store at most this much time: for a door whose caller does not wait longer. A store has a budget of its own;
    /// the smaller one counts.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(self.timeout.map_or(timeout, |known| known.min(timeout)));
        self
    }

    /// Names the front door and the method of the request, for [observers](crate::spi::Observer).
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

    /// How the checks combine.
    pub const fn mode(&self) -> PlanMode {
        self.mode
    }

    /// Whether the request must be refused while the store fails: one of its rules asks for that. So must one that meets more
    /// limits than a store decides at once, since it would fail for ever.
    pub fn fails_closed(&self) -> bool {
        self.checks.len() > MAX_CHECKS || self.enforced().any(Check::fails_closed)
    }

    /// What each rule asks for while the store fails, in the order of the checks. What is in shadow asks for nothing.
    pub fn policies(&self) -> impl Iterator<Item = (&str, OnFailure)> {
        self.enforced().map(|check| (check.gate().rule(), check.on_failure()))
    }

    fn enforced(&self) -> impl Iterator<Item = &Check<'r>> {
        self.checks.iter().filter(|check| check.gate().role() != Role::Shadow)
    }

    /// The same question to other checks, all or nothing. Their keys must differ.
    pub(crate) fn with_checks<'c>(&self, checks: impl Iterator<Item = Check<'c>>) -> Plan<'c> {
        let Self { max_units, max_delay, requests, peek, .. } = *self;
        Plan { max_units, max_delay, requests, peek, ..Plan::from_distinct(checks.collect()) }
    }

    /// The time that the store has, if a door says so.
    pub const fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// The front door and the method of the request.
    pub const fn origin(&self) -> Origin {
        self.origin
    }

    /// How many requests it stands for: one, or those that were put together by [`and`](Self::and).
    pub(crate) const fn requests(&self) -> u64 {
        self.requests
    }

    /// Whether answers must give nothing away.
    pub(crate) fn is_security(&self) -> bool {
        self.enforced().any(Check::is_security)
    }

    pub(crate) fn sharing(&self) -> &[Sharing] {
        &self.sharing
    }

    /// The most units that are asked for.
    pub const fn max_units(&self) -> u64 {
        self.max_units
    }

    /// What `check` is asked for, `units` times.
    #[inline(always)]
    pub fn take(&self, check: &Check<'_>, units: u64) -> Take {
        Take { cost: check.cost(), units, longest_delay: self.max_delay }
    }
}

/// Combining
impl Plan<'_> {
    /// The units that the whole plan grants, given the room that each check has: 0 denies.
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

    /// Whether `check`, if it would admit the granted units (or one, if none were), consumes them.
    #[inline(always)]
    pub fn consumes(&self, check: &Check<'_>, admitted: bool, granted: u64) -> bool {
        admitted && check.cost() > 0 && (granted > 0 || self.counts_denied(check))
    }

    /// Whether `check` counts a request that does not pass.
    #[inline(always)]
    pub fn counts_denied(&self, check: &Check<'_>) -> bool {
        self.mode == PlanMode::CountEach && check.gate().role() != Role::Shadow
    }
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SharedKey { rule } => write!(f, "rule {rule:?}: another check of the plan has the same key"),
            Self::TooManyChecks { checks } => {
                write!(f, "{checks} checks in one plan; at most {MAX_CHECKS}")
            }
        }
    }
}

impl Error for PlanError {}
