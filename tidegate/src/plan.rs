//! `Plan`: the checks that one request must pass, and the arithmetic that makes one answer of them. Pure.
//!
//! The same few lines stand in Lua in `tidegate-redis/src/scripts/decide.lua`.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use smol_str::SmolStr;

use crate::algorithm::{Grid, Take};
use crate::decision::Sharing;
use crate::key::{Key, KeyStem};
use crate::limit::LARGEST_AMOUNT;
use crate::{Few, Limit, OnFailure, Subject};

/// The most checks in one plan.
pub const MOST_CHECKS: usize = 32;

/// A cost that no limit can ever admit; a larger one is as good as this.
const MORE_THAN_ANY: u64 = LARGEST_AMOUNT + 1;

/// What the checks of one request are, and how they combine.
#[derive(Clone, Debug)]
pub struct Plan<'r> {
    checks: Few<Check<'r>>,
    mode: PlanMode,
    units: u64,
    longest_delay: u64,
    budget: Option<Duration>,
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

/// What a check has to say in a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// The request passes only if it admits.
    #[default]
    Enforced,
    /// Judged beside, without influence: consumes if the request passes and it would itself have admitted it.
    Shadow,
    /// One of a group, by number: the group denies only if all its members do.
    AnyOf(u8),
}

/// One limit of one rule, ready to be checked.
#[derive(Clone, Debug)]
pub struct Gate {
    rule: SmolStr,
    limit_name: SmolStr,
    limit: Limit,
    role: Role,
    stem: KeyStem,
    plan: Option<Arc<str>>,
    on_failure: OnFailure,
    emergency: Option<Limit>,
    security: bool,
    /// The time in which the whole limit comes back, in microseconds.
    window: Grid,
}

/// A gate, whose key it is, and what it costs.
#[derive(Clone, Copy, Debug)]
pub struct Check<'r> {
    gate: &'r Gate,
    key: Key<'r>,
    cost: u64,
    /// Of the gate, or stricter: that of a rule that shares the check.
    on_failure: OnFailure,
    security: bool,
}

/// Why checks do not make a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    /// Two checks have the same key, so that one would see what the other took.
    SharedKey {
        /// The rule of the second one.
        rule: SmolStr,
    },
    /// More than [`MOST_CHECKS`].
    TooManyChecks {
        /// How many there were.
        checks: usize,
    },
}

/// Building a plan
impl<'r> Plan<'r> {
    /// A plan of these checks, in this order; their keys must differ.
    pub fn new(checks: impl IntoIterator<Item = Check<'r>>) -> Result<Self, PlanError> {
        let checks: Few<Check<'r>> = checks.into_iter().collect();
        if checks.len() > MOST_CHECKS {
            return Err(PlanError::TooManyChecks { checks: checks.len() });
        }
        for (index, check) in checks.iter().enumerate() {
            if checks[..index].iter().any(|earlier| earlier.key == check.key) {
                return Err(PlanError::SharedKey { rule: check.gate.rule.clone() });
            }
        }
        Ok(Self::from_distinct(checks))
    }

    #[inline(always)]
    pub(crate) fn from_distinct(checks: Few<Check<'r>>) -> Self {
        Self {
            checks,
            mode: PlanMode::AllOrNothing,
            units: 1,
            longest_delay: u64::MAX,
            budget: None,
            sharing: Vec::new(),
        }
    }

    /// Appends a check, whose cost is added to that of an earlier one with the same key, if there may be one.
    #[inline]
    pub(crate) fn add(&mut self, check: Check<'r>, may_be_shared: bool) {
        let shared = self.checks.iter_mut().enumerate().find(|(_, known)| may_be_shared && known.key == check.key);
        match shared {
            Some((place, known)) => {
                known.cost = known.cost.saturating_add(check.cost).min(MORE_THAN_ANY);
                known.on_failure = known.on_failure.stricter(check.on_failure);
                known.security |= check.security;
                self.sharing.push(Sharing { check: place, rule: check.gate.rule.clone(), cost: check.cost });
            }
            None => self.checks.push(check),
        }
    }

    /// This plan and another as one: all or nothing over both. Where they share a key, the costs add up.
    pub fn and(mut self, other: &Plan<'r>) -> Self {
        for (place, check) in other.checks.iter().enumerate() {
            let at = self.checks.iter().position(|known| known.key == check.key).unwrap_or(self.checks.len());
            let parts = || other.sharing.iter().filter(|part| part.check == place);
            // What its further rules cost is told by them; the rest is its own.
            let own = check.cost.saturating_sub(parts().map(|part| part.cost).fold(0, u64::saturating_add));
            self.add(Check { cost: own, ..*check }, true);
            for part in parts() {
                self.checks[at].cost = self.checks[at].cost.saturating_add(part.cost).min(MORE_THAN_ANY);
                self.sharing.push(Sharing { check: at, ..part.clone() });
            }
        }
        self
    }

    /// Asks for as many units as there are, up to `most` (at least one), each at the cost of its check.
    pub fn up_to(mut self, most: u64) -> Self {
        self.units = most.clamp(1, LARGEST_AMOUNT);
        self
    }

    /// Sets how the checks combine.
    pub fn mode(mut self, mode: PlanMode) -> Self {
        self.mode = mode;
        self
    }

    /// Refuses what would have to wait longer than this: zero for a door that cannot hold a request.
    pub fn longest_delay(mut self, delay: Duration) -> Self {
        self.longest_delay = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        self
    }

    /// Leaves the store at most this much time: for a door whose caller does not wait longer. A store has a budget of its own;
    /// the smaller one counts.
    pub fn within(mut self, budget: Duration) -> Self {
        self.budget = Some(self.budget.map_or(budget, |known| known.min(budget)));
        self
    }
}

/// Reading a plan
impl<'r> Plan<'r> {
    /// The checks, in order.
    pub fn checks(&self) -> &[Check<'r>] {
        &self.checks
    }

    /// How the checks combine.
    pub const fn plan_mode(&self) -> PlanMode {
        self.mode
    }

    /// Whether the request must be refused while the store fails: one of its rules asks for that. So must one that meets more
    /// limits than a store decides at once, since it would fail for ever.
    pub fn fails_closed(&self) -> bool {
        self.checks.len() > MOST_CHECKS || self.enforced().any(Check::fails_closed)
    }

    /// What each rule asks for while the store fails, in the order of the checks. What is in shadow asks for nothing.
    pub fn policies(&self) -> impl Iterator<Item = (&str, OnFailure)> {
        self.enforced().map(|check| (check.gate.rule.as_str(), check.on_failure))
    }

    fn enforced(&self) -> impl Iterator<Item = &Check<'r>> {
        self.checks.iter().filter(|check| check.gate.role != Role::Shadow)
    }

    /// The same question to other checks, all or nothing. Their keys must differ.
    pub(crate) fn with_checks<'c>(&self, checks: impl Iterator<Item = Check<'c>>) -> Plan<'c> {
        let (units, longest_delay) = (self.units, self.longest_delay);
        Plan { units, longest_delay, ..Plan::from_distinct(checks.collect()) }
    }

    /// The time that the store has, if a door says so.
    pub const fn budget(&self) -> Option<Duration> {
        self.budget
    }

    pub(crate) fn sharing(&self) -> &[Sharing] {
        &self.sharing
    }

    /// The most units that are asked for.
    pub const fn units(&self) -> u64 {
        self.units
    }

    /// What `check` is asked for, `units` times.
    #[inline(always)]
    pub fn take(&self, check: &Check<'_>, units: u64) -> Take {
        Take { cost: check.cost, units, longest_delay: self.longest_delay }
    }
}

/// Combining
impl Plan<'_> {
    /// The units that the whole plan grants, given the room that each check has: 0 denies.
    #[inline(always)]
    pub fn granted(&self, room: impl Fn(usize) -> u64) -> u64 {
        let mut granted = self.units;
        for (index, check) in self.checks.iter().enumerate() {
            granted = match check.gate.role {
                Role::Enforced => granted.min(room(index)),
                Role::Shadow => granted,
                Role::AnyOf(group) => {
                    let members = self.checks.iter().enumerate().filter(|(_, c)| c.gate.role == Role::AnyOf(group));
                    granted.min(members.map(|(member, _)| room(member)).max().unwrap_or(0))
                }
            };
        }
        granted
    }

    /// Whether `check`, if it would admit the granted units (or one, if none were), consumes them.
    #[inline(always)]
    pub fn consumes(&self, check: &Check<'_>, admitted: bool, granted: u64) -> bool {
        admitted && check.cost > 0 && (granted > 0 || self.counts_denied(check))
    }

    /// Whether `check` counts a request that does not pass.
    #[inline(always)]
    pub fn counts_denied(&self, check: &Check<'_>) -> bool {
        self.mode == PlanMode::CountEach && check.gate.role != Role::Shadow
    }
}

// === impl Gate ===

impl Gate {
    /// A limit of `rule`, under a name that tells it from other limits of the rule (empty for the only one).
    pub fn new(
        rule: impl Into<SmolStr>,
        limit_name: impl Into<SmolStr>,
        limit: Limit,
        role: Role,
        stem: KeyStem,
    ) -> Self {
        Self {
            rule: rule.into(),
            limit_name: limit_name.into(),
            limit,
            role,
            stem,
            plan: None,
            on_failure: OnFailure::default(),
            emergency: None,
            security: false,
            window: limit.grid(),
        }
    }

    /// The same gate, with another limit.
    pub(crate) fn with_limit(&self, limit: Limit) -> Self {
        Self { limit, window: limit.grid(), ..self.clone() }
    }

    /// The same gate, with the limit that the rule has in this plan.
    pub fn of_plan(mut self, plan: &str) -> Self {
        self.plan = Some(plan).filter(|plan| !plan.is_empty()).map(Into::into);
        self
    }

    /// Sets what happens while the store fails.
    pub fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = on_failure;
        self
    }

    /// Sets what one instance lets pass under [`OnFailure::Static`].
    pub fn emergency(mut self, limit: Option<Limit>) -> Self {
        self.emergency = limit;
        self
    }

    /// Sets whether answers must give nothing away.
    pub fn security(mut self, security: bool) -> Self {
        self.security = security;
        self
    }

    /// The only limit of `rule`, enforced, under the rule's own key.
    pub fn of_rule(rule: impl Into<SmolStr>, limit: Limit) -> Self {
        let rule = rule.into();
        let stem = KeyStem::of_rule(&rule, &limit, "");
        Self::new(rule, "", limit, Role::Enforced, stem)
    }

    /// The id of the rule.
    pub const fn rule(&self) -> &SmolStr {
        &self.rule
    }

    /// The name of the limit within its rule, often empty.
    pub const fn limit_name(&self) -> &SmolStr {
        &self.limit_name
    }

    /// The limit.
    pub const fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Its role.
    pub const fn role(&self) -> Role {
        self.role
    }

    /// The plan whose limit it is, often empty.
    pub fn plan(&self) -> &str {
        self.plan.as_deref().unwrap_or_default()
    }

    pub(crate) fn shared_plan(&self) -> Option<Arc<str>> {
        self.plan.clone()
    }

    /// What one instance lets pass under [`OnFailure::Static`], whoever asks.
    pub const fn emergency_limit(&self) -> Option<&Limit> {
        self.emergency.as_ref()
    }

    pub(crate) const fn window(&self) -> Grid {
        self.window
    }

    pub(crate) const fn stem(&self) -> &KeyStem {
        &self.stem
    }

    /// What decides the partition when the rule counts everybody together.
    pub(crate) fn own_tag(&self) -> Subject {
        self.stem.own_tag()
    }
}

// === impl Check ===

impl<'r> Check<'r> {
    pub(crate) fn new(gate: &'r Gate, key: Key<'r>, cost: u64) -> Self {
        Self { gate, key, cost: cost.min(MORE_THAN_ANY), on_failure: gate.on_failure, security: gate.security }
    }

    /// A check of `gate` for a subject that decides its own partition.
    pub fn of(gate: &'r Gate, subject: Subject, cost: u64) -> Self {
        Self::new(gate, Key::new(&gate.stem, subject, subject), cost)
    }

    /// Which limit of which rule.
    pub const fn gate(&self) -> &'r Gate {
        self.gate
    }

    /// Where its state is.
    pub const fn key(&self) -> &Key<'r> {
        &self.key
    }

    /// Whether answers must give nothing away, for this rule or for one that shares the check.
    pub const fn is_security(&self) -> bool {
        self.security
    }

    /// What happens to the request while the store fails.
    pub const fn on_failure(&self) -> OnFailure {
        self.on_failure
    }

    /// Whether the request must be refused while the store fails. A static rule without a cap has nothing to go by.
    fn fails_closed(&self) -> bool {
        match self.on_failure {
            OnFailure::Closed => true,
            OnFailure::Static => self.gate.emergency.is_none(),
            OnFailure::Open | OnFailure::Degraded | OnFailure::Local => false,
        }
    }

    /// The same check, with another policy for the time that the store fails.
    pub(crate) const fn with_policy(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = on_failure;
        self
    }

    /// The same check at another cost of one unit.
    pub fn with_cost(mut self, cost: u64) -> Self {
        self.cost = cost.min(MORE_THAN_ANY);
        self
    }

    /// The cost of one unit.
    pub const fn cost(&self) -> u64 {
        self.cost
    }
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SharedKey { rule } => write!(f, "rule {rule:?}: another check of the plan has the same key"),
            Self::TooManyChecks { checks } => {
                write!(f, "{checks} checks in one plan; at most {MOST_CHECKS}")
            }
        }
    }
}

impl Error for PlanError {}
