//! `RuleSet`: rules that fit together, indexed; turns a [`Request`] into the [`Plan`] that it must pass. Pure.

mod validate;

use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;
use smol_str::SmolStr;

use crate::attributes::{PLAN, TENANT};
use crate::http::HeaderPolicy;
use crate::key::{Key, KeyStem};
use crate::limit::MAX_AMOUNT;
use crate::plan::{Check, Gate, MAX_CHECKS, Plan, Role};
use crate::rule::{OnFailure, PartitionBy, Rule, RuleMode};
use crate::spi::{Match, Matcher, Subject};
use crate::subject::SubjectHasher;
use crate::{Limit, Request, Secret};

/// The longest name of a rule, a limit or a budget, in bytes: it is part of every key.
const LONGEST_ID: usize = 64;

/// Rules that fit together.
#[derive(Clone, Debug)]
pub struct RuleSet {
    rules: Vec<Ready>,
    places: HashMap<SmolStr, usize>,
    /// What finds the rules of a request, if the action does not.
    matcher: Option<Arc<dyn Matcher>>,
    /// Which fields answers carry.
    header_policy: HeaderPolicy,
    /// For each action that a rule names: which rules match it, in order, those for every action among them.
    by_action: HashMap<SmolStr, Vec<u32>>,
    /// Which rules match any other action.
    for_any: Vec<u32>,
}

/// A rule with everything computed that does not depend on the request.
#[derive(Clone, Debug)]
struct Ready {
    rule: Rule,
    gates: Vec<Gate>,
    /// The gates of its plans, by name.
    plans: Vec<(SmolStr, Vec<Gate>)>,
    /// Hashes whom the rule counts.
    subject: Arc<SubjectHasher>,
    /// Which of the values decides the partition, and what hashes it, where that is not the subject itself.
    tenant: Option<(usize, Arc<SubjectHasher>)>,
    /// What decides the partition, where that is the same for all subjects.
    fixed: Option<Subject>,
}

/// What a request asks of one rule, but for whom.
struct Asked<'m> {
    /// Which of the rule's plans applies.
    plan: &'m str,
    cost: u64,
    on_failure: Option<OnFailure>,
    anonymous: bool,
}

/// Why rules do not fit together: which rule, and what to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleError {
    rule: SmolStr,
    problem: String,
}

impl RuleSet {
    /// Checks the rules and indexes them; their order is kept.
    ///
    /// ```
    /// use tidegate::{Limit, Rate, Rule, RuleSet};
    ///
    /// let limit = Limit::token_bucket(20, Rate::per_second(10)?)?;
    /// let error = RuleSet::new([Rule::new("api", limit), Rule::new("api", limit)]).unwrap_err();
    /// assert_eq!(error.to_string(), "rule \"api\": the id is taken; give each rule its own");
    /// # Ok::<(), tidegate::LimitError>(())
    /// ```
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Result<Self, RuleError> {
        let mut set = Self::of(rules, None)?;
        for place in 0..set.rules.len() {
            set.index(place);
        }
        set.check_sizes()?;
        Ok(set)
    }

    /// Checks the rules, and leaves it to `matcher` which of them apply to a request.
    pub fn with_matcher(
        rules: impl IntoIterator<Item = Rule>,
        matcher: impl Matcher + 'static,
    ) -> Result<Self, RuleError> {
        Self::of(rules, Some(Arc::new(matcher)))
    }

    fn of(rules: impl IntoIterator<Item = Rule>, matcher: Option<Arc<dyn Matcher>>) -> Result<Self, RuleError> {
        let (mut ready, mut places) = (Vec::new(), HashMap::new());
        let (mut ids, mut budgets, mut hashers) = (HashSet::new(), HashMap::new(), Hashers::new(Secret::public()));
        for rule in rules {
            validate::check(&rule, &mut ids, &mut budgets)?;
            if rule.mode != RuleMode::Disabled {
                places.insert(rule.id.clone(), ready.len());
                ready.push(Ready::new(rule, &mut hashers));
            }
        }
        let header_policy = HeaderPolicy::new();
        Ok(Self { rules: ready, places, matcher, header_policy, by_action: HashMap::new(), for_any: Vec::new() })
    }

    /// Notes which actions a rule matches; the places come in order.
    fn index(&mut self, place: usize) {
        let (next, rule) = (place as u32, &self.rules[place].rule);
        if let Some(action) = &rule.action {
            self.by_action.entry(action.clone()).or_insert_with(|| self.for_any.clone()).push(next);
        } else {
            self.for_any.push(next);
            self.by_action.values_mut().for_each(|matching| matching.push(next));
        }
    }

    /// No request may have to pass more checks than a plan takes.
    fn check_sizes(&self) -> Result<(), RuleError> {
        for matching in self.by_action.values().chain([&self.for_any]) {
            let checks: usize = matching.iter().map(|index| self.rules[*index as usize].most_checks()).sum();
            if let Some(last) = matching.last().filter(|_| checks > MAX_CHECKS) {
                let rule = self.rules[*last as usize].rule.id.clone();
                let problem = format!("with it {checks} limits apply to one request; at most {MAX_CHECKS} may");
                return Err(RuleError { rule, problem });
            }
        }
        Ok(())
    }

    /// Says which fields answers carry.
    pub fn with_header_policy(mut self, header_policy: HeaderPolicy) -> Self {
        self.header_policy = header_policy;
        self
    }

    /// Hashes subjects with `secret` instead of the [public](Secret::public) one.
    pub fn with_secret(mut self, secret: &Secret) -> Self {
        let mut hashers = Hashers::new(secret.clone());
        self.rules = self.rules.into_iter().map(|ready| Ready::new(ready.rule, &mut hashers)).collect();
        self
    }

    /// The checks that `request` must pass, in the order of the rules.
    ///
    /// Rules that share a budget make one check with the sum of their costs.
    #[inline(always)]
    pub fn resolve<'r>(&'r self, request: &Request<'_>) -> Plan<'r> {
        let mut plan = Plan::from_distinct(SmallVec::new());
        if let Some(matcher) = &self.matcher {
            matcher.find(request, &mut |found| {
                let ready = &self.rules[found.rule];
                ready.add_checks(&mut plan, found.values.iter().copied(), &Asked::by(&found));
            });
            return plan;
        }
        for index in self.matching(request.action()) {
            let ready = &self.rules[*index as usize];
            let values = ready.rule.per.iter().map(|name| request.attribute(name));
            let plan_name = if ready.plans.is_empty() { "" } else { request.attribute(PLAN).unwrap_or_default() };
            let cost = ready.rule.cost.unwrap_or(request.cost());
            let anonymous = ready.rule.anonymous.is_some();
            ready.add_checks(&mut plan, values, &Asked { plan: plan_name, cost, on_failure: None, anonymous });
        }
        plan
    }

    /// The checks that one rule makes by itself, for those who explain it.
    pub fn plan_of(&self, found: Match<'_>) -> Plan<'_> {
        let mut plan = Plan::from_distinct(SmallVec::new());
        if let Some(ready) = self.rules.get(found.rule) {
            ready.add_checks(&mut plan, found.values.iter().copied(), &Asked::by(&found));
        }
        plan
    }

    /// The attributes that the rules read: what a door must bring. Others may be left out of a [`Request`].
    pub fn reads(&self) -> Vec<String> {
        let mut names = self.matcher.as_ref().map(|matcher| matcher.reads()).unwrap_or_default();
        if self.matcher.is_none() {
            names.extend(self.rules.iter().flat_map(|ready| ready.rule.per().map(str::to_owned)));
            names.extend(self.rules.iter().any(|ready| !ready.plans.is_empty()).then(|| PLAN.into()));
        }
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Which fields answers carry.
    pub const fn header_policy(&self) -> &HeaderPolicy {
        &self.header_policy
    }

    /// Whether a rule has its costs told by the response.
    pub fn has_cost_headers(&self) -> bool {
        self.rules.iter().any(|ready| ready.rule.cost_header.is_some())
    }

    /// What a request really cost under a rule, if the rule names a header of the response for it and that tells a whole
    /// number: for [`Limiter::settle`](crate::Limiter::settle). `header` gives a header by its name in lower case.
    pub fn actual_cost<'h>(&self, rule: &str, header: impl Fn(&str) -> Option<&'h str>) -> Option<u64> {
        let told = header(self.rule(rule)?.cost_header()?)?.trim();
        let digits = !told.is_empty() && told.bytes().all(|byte| byte.is_ascii_digit());
        // More digits than a number has are the largest cost there is.
        digits.then(|| told.parse().unwrap_or(MAX_AMOUNT).min(MAX_AMOUNT))
    }

    /// A rule by its id; one that is disabled is not there.
    pub fn rule(&self, id: &str) -> Option<&Rule> {
        self.places.get(id).map(|place| &self.rules[*place].rule)
    }

    /// The rules for `action`, in order.
    #[inline]
    fn matching(&self, action: &str) -> &[u32] {
        if self.by_action.is_empty() {
            return &self.for_any;
        }
        self.by_action.get(action).unwrap_or(&self.for_any)
    }

    /// The limit of a rule by name and plan, for receipts.
    pub(crate) fn gate(&self, rule: &str, plan: Option<&str>, limit: &str) -> Option<&Gate> {
        let ready = &self.rules[*self.places.get(rule)?];
        let gates = match plan {
            Some(plan) => &ready.plans.iter().find(|(name, _)| name == plan)?.1,
            None => &ready.gates,
        };
        gates.iter().find(|gate| gate.limit_name() == limit)
    }
}

/// Rules that count by the same names share what hashes them, which then stays at hand however many rules there are.
struct Hashers {
    secret: Secret,
    known: HashMap<Vec<SmolStr>, Arc<SubjectHasher>>,
}

impl Hashers {
    fn new(secret: Secret) -> Self {
        Self { secret, known: HashMap::new() }
    }

    fn hasher(&mut self, names: &[SmolStr]) -> Arc<SubjectHasher> {
        let Self { secret, known } = self;
        let hasher = || Arc::new(secret.hasher(names.iter().map(SmolStr::as_str)));
        Arc::clone(known.entry(names.to_vec()).or_insert_with(hasher))
    }
}

impl<'m> Asked<'m> {
    #[inline(always)]
    const fn by(found: &Match<'m>) -> Self {
        Self { plan: found.plan, cost: found.cost, on_failure: found.on_failure, anonymous: found.anonymous }
    }
}

impl Ready {
    fn new(rule: Rule, hashers: &mut Hashers) -> Self {
        let subject = hashers.hasher(&rule.per);
        // The tenant decides the partition of every rule that counts by it, so that the checks of one tenant share a slot.
        let tenant = rule.per.iter().position(|name| name == TENANT);
        let tenant = tenant.filter(|_| rule.per.len() > 1 && rule.partition_by == PartitionBy::Usual);
        let fixed = match &rule.partition_by {
            PartitionBy::Usual | PartitionBy::Subject => None,
            PartitionBy::Rule => Some(KeyStem::tag_of(rule.budget.as_ref().unwrap_or(&rule.id))),
            PartitionBy::Constant(name) => Some(KeyStem::tag_of(name)),
        };
        let plans = rule.plans.iter().map(|(plan, limits)| (plan.clone(), gates(&rule, plan, limits))).collect();
        Self {
            gates: gates(&rule, "", &rule.limits),
            plans,
            rule,
            subject,
            tenant: tenant.map(|place| (place, hashers.hasher(&[TENANT.into()]))),
            fixed,
        }
    }

    /// Adds a check for each limit that applies in `plan_name`.
    #[inline(always)]
    fn add_checks<'r, 'v>(
        &'r self,
        plan: &mut Plan<'r>,
        values: impl ExactSizeIterator<Item = Option<&'v str>> + Clone,
        asked: &Asked<'_>,
    ) {
        let Asked { plan: plan_name, cost, on_failure, anonymous } = *asked;
        // Everybody together is one subject, of which there cannot be many.
        let anonymous = anonymous && !self.rule.per.is_empty();
        // Who has no tenant is spread by subject: nobody else shares their checks.
        let tenant = self.tenant.as_ref().and_then(|(place, hasher)| {
            let tenant = values.clone().nth(*place).flatten()?;
            Some(hasher.subject([Some(tenant)].into_iter()))
        });
        let subject = self.subject.subject(values);
        let tag = self.fixed.or(tenant);
        let in_plan = self.plans.iter().find(|(name, _)| name == plan_name);
        for gate in in_plan.map_or(&self.gates, |(_, gates)| gates) {
            // With no subject, the partition comes from the rule instead: constants spread over the slots.
            let own = if self.rule.per.is_empty() { gate.own_tag() } else { subject };
            let key = Key::new(gate.stem(), tag.unwrap_or(own), subject);
            let check = Check::from_key(gate, key, cost).with_anonymous(anonymous);
            let check = on_failure.map_or(check, |policy| check.with_policy(policy));
            plan.add(check, self.rule.budget.is_some());
        }
    }

    /// The most checks that it makes, in whichever plan.
    fn most_checks(&self) -> usize {
        self.plans.iter().map(|(_, gates)| gates.len()).chain([self.gates.len()]).max().unwrap_or_default()
    }
}

fn gates(rule: &Rule, plan: &str, limits: &[(SmolStr, Limit)]) -> Vec<Gate> {
    let role = if rule.mode == RuleMode::Shadow { Role::Shadow } else { Role::Enforced };
    let gate = |(name, limit): &(SmolStr, Limit)| {
        let stem = match &rule.budget {
            // A shadow rule counts beside the budget: it must not touch what others share.
            Some(budget) if role != Role::Shadow => KeyStem::for_budget(budget, limit, name),
            _ => KeyStem::for_rule(&rule.id, limit, name),
        };
        let gate = Gate::from_names(rule.id.clone(), name.clone(), *limit, role, stem);
        let gate = gate
            .with_plan(plan)
            .with_on_failure(rule.on_failure)
            .with_static_limit(rule.static_limit)
            .with_security(rule.security);
        gate.with_anonymous(rule.anonymous.unwrap_or_default())
    };
    limits.iter().map(gate).collect()
}

impl RuleError {
    /// The id of the rule that cannot stay as it is.
    pub fn rule(&self) -> &str {
        &self.rule
    }
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule {:?}: {}", self.rule, self.problem)
    }
}

impl Error for RuleError {}
