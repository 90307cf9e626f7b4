//! `RuleSet`: validated and indexed rules. It resolves a [`Request`] into a [`Plan`].
//!
//! Rules that share a budget become one check with the sum of their costs. As two checks, the second would be decided on the state after
//! the first, and its retry would not be exact.
//!
//! A request that cannot be judged, such as one with a repeated API key, becomes a plan without checks and with a
//! [problem](crate::RequestProblem). The limiter denies it without a call, so no front end can admit it by mistake.

mod find;
mod indexed_rule;
mod readings;
mod refusal;
mod rule_error;
mod subject_attributes;
mod validate;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use smallvec::SmallVec;
use smol_str::SmolStr;

use crate::attributes::{BODY, DEFAULT_MAX_BODY_BYTES, EscapedSlashes, NormalForms, PATH, PLAN};
use crate::http::HeaderPolicy;
use crate::limit::MAX_AMOUNT;
use crate::network::{NetworkHasher, address_in_text};
use crate::plan::{CountedSubject, Gate, MAX_CHECKS, Plan};
use crate::rule::{Rule, RuleMode};
use crate::rules::UsageKind;
use crate::spi::{Key, Match, Matcher, RequestMemo, Subject};
use crate::{Request, Secret};
use indexed_rule::{HasherCache, IndexedRule, RuleInput};
pub use rule_error::RuleError;
use subject_attributes::SubjectAttributes;

/// The maximum length of the name of a rule, a limit or a budget. Names are part of every key.
const MAX_NAME_BYTES: usize = 64;

/// Validated and indexed rules.
#[derive(Clone, Debug)]
pub struct RuleSet {
    rules: Vec<IndexedRule>,
    indexes: HashMap<SmolStr, usize>,
    /// Finds the rules of a request, if set. Otherwise the action does.
    matcher: Option<Arc<dyn Matcher>>,
    /// The header fields of responses.
    header_policy: HeaderPolicy,
    /// Hashes the networks of subjects.
    networks: NetworkHasher,
    escaped_slashes: EscapedSlashes,
    /// Whether a rule reads the path.
    reads_path: bool,
    /// Whether a rule reads the text of the body.
    reads_body: bool,
    max_body_bytes: usize,
    /// The rules for each action, in order, including those for every action.
    by_action: HashMap<SmolStr, Vec<u32>>,
    /// The rules for all other actions.
    for_any: Vec<u32>,
}

impl RuleSet {
    /// Validates and indexes the rules. Their order is kept.
    ///
    /// ```
    /// use tidegate::{Limit, Rate, Rule, RuleSet};
    ///
    /// let limit = Limit::token_bucket(20, Rate::per_second(10)?)?;
    /// let error = RuleSet::new([Rule::new("api", limit), Rule::new("api", limit)]).unwrap_err();
    /// assert_eq!(error.to_string(), "rule \"api\": the id is taken; give each rule its own");
    /// # Ok::<(), tidegate::limits::LimitError>(())
    /// ```
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Result<Self, RuleError> {
        let mut set = Self::from_rules(rules.into_iter().map(Arc::new), None)?;
        for index in 0..set.rules.len() {
            set.index_action(index);
        }
        set.check_sizes()?;
        Ok(set)
    }

    /// Validates the rules. `matcher` finds those that apply to a request.
    pub fn with_matcher(
        rules: impl IntoIterator<Item = Arc<Rule>>,
        matcher: impl Matcher + 'static,
    ) -> Result<Self, RuleError> {
        Self::from_rules(rules, Some(Arc::new(matcher)))
    }

    fn from_rules(
        rules: impl IntoIterator<Item = Arc<Rule>>,
        matcher: Option<Arc<dyn Matcher>>,
    ) -> Result<Self, RuleError> {
        let (mut indexed, mut indexes) = (Vec::new(), HashMap::new());
        let (mut ids, mut budgets, mut hashers) = (HashSet::new(), HashMap::new(), HasherCache::new(Secret::public()));
        for rule in rules {
            let error = |problem| RuleError { rule: rule.id.clone(), problem };
            let attributes = validate::check(&rule, &mut ids, &mut budgets).map_err(error)?;
            if rule.mode != RuleMode::Disabled {
                indexes.insert(rule.id.clone(), indexed.len());
                indexed.push(IndexedRule::new(rule, attributes, &mut hashers));
            }
        }
        let mut set = Self {
            rules: indexed,
            indexes,
            matcher,
            header_policy: HeaderPolicy::new(),
            networks: hashers.secret.network_hasher(),
            escaped_slashes: EscapedSlashes::default(),
            reads_path: false,
            reads_body: false,
            max_body_bytes: DEFAULT_MAX_BODY_BYTES,
            by_action: HashMap::new(),
            for_any: Vec::new(),
        };
        let reads = set.reads();
        set.reads_path = reads.iter().any(|name| name == PATH);
        set.reads_body = reads.iter().any(|name| name == BODY);
        Ok(set)
    }

    /// Adds a rule to the index of actions. Must be called in the order of the rules.
    fn index_action(&mut self, index: usize) {
        let (next, rule) = (index as u32, &self.rules[index].rule);
        if let Some(action) = &rule.action {
            self.by_action.entry(action.clone()).or_insert_with(|| self.for_any.clone()).push(next);
        } else {
            self.for_any.push(next);
            self.by_action.values_mut().for_each(|matching| matching.push(next));
        }
    }

    /// Rejects rules that give a request more than [`MAX_CHECKS`]. Shadow rules do not count.
    fn check_sizes(&self) -> Result<(), RuleError> {
        for matching in self.by_action.values().chain([&self.for_any]) {
            let enforced = || {
                let rules = matching.iter().map(|index| &self.rules[*index as usize]);
                rules.filter(|indexed| indexed.rule.mode != RuleMode::Shadow)
            };
            let checks: usize = enforced().map(IndexedRule::max_checks).sum();
            if let Some(last) = enforced().next_back().filter(|_| checks > MAX_CHECKS) {
                let rule = last.rule.id.clone();
                let problem = format!("with it {checks} limits apply to one request; at most {MAX_CHECKS} may");
                return Err(RuleError { rule, problem });
            }
        }
        Ok(())
    }

    /// Sets the header fields of responses.
    pub fn with_header_policy(mut self, header_policy: HeaderPolicy) -> Self {
        self.header_policy = header_policy;
        self
    }

    /// Sets what front ends do with escaped slashes in paths.
    pub const fn with_escaped_slashes(mut self, escaped_slashes: EscapedSlashes) -> Self {
        self.escaped_slashes = escaped_slashes;
        self
    }

    /// Sets the longest body that rules read, in bytes; [`DEFAULT_MAX_BODY_BYTES`] by default.
    pub const fn with_max_body_bytes(mut self, bytes: usize) -> Self {
        self.max_body_bytes = bytes;
        self
    }

    /// Sets the secret for hashing subjects, in place of the [public](Secret::public) one.
    pub fn with_secret(mut self, secret: &Secret) -> Self {
        self.networks = secret.network_hasher();
        let mut hashers = HasherCache::new(secret.clone());
        self.rules = self.rules.into_iter().map(|indexed| indexed.with_hashers(&mut hashers)).collect();
        self
    }

    /// The checks that `request` must pass, in the order of the rules.
    ///
    /// Rules that share a budget become one check with the sum of their costs. A request that cannot be judged becomes a plan with a
    /// [problem](Plan::problem), which is denied.
    ///
    /// A request whose path has several [readings](crate::attributes::PathReadings) must pass the checks of each: they are
    /// [united](Plan::unite), those of the path as written first.
    #[inline(always)]
    pub fn resolve<'r>(&'r self, request: &Request<'_>) -> Plan<'r> {
        match self.ambiguous_path(request) {
            Some(path) => self.resolve_readings(request, path),
            None => self.resolve_reading(request, &RequestMemo::new()),
        }
    }

    /// The checks of a request whose path is in its normal form.
    #[inline(always)]
    fn resolve_reading<'r>(&'r self, request: &Request<'_>, memo: &RequestMemo) -> Plan<'r> {
        let mut plan = Plan::from_distinct(SmallVec::new());
        if let Some(matcher) = &self.matcher {
            let found = matcher.find(request, memo, &mut |matched| {
                let (rule, input) = (&self.rules[matched.rule], self.input(&matched));
                rule.add_checks(&mut plan, matched.values.iter().copied(), &input);
            });
            return match found {
                Ok(body_use) => plan.with_body_use(body_use),
                Err(problem) => Plan::refused_in(plan.error_format(), problem),
            };
        }
        let lacks_body = self.lacks_body(request);
        for index in self.matching(request.action()) {
            let indexed = &self.rules[*index as usize];
            if let Some((kind, name)) = indexed.problem(request) {
                return self.refuse(request, kind, name);
            }
            let values = indexed.attributes.names.iter().map(|name| request.attribute(name));
            if indexed.attributes.forms.is_empty() {
                self.add_checks(&mut plan, indexed, request, values);
            } else {
                self.add_normal_checks(&mut plan, indexed, request);
            }
            if lacks_body {
                let body_use = plan.body_use().unite(indexed.body_use());
                plan = plan.with_body_use(body_use);
            }
        }
        plan
    }

    /// Adds the checks of a rule without a matcher for a request with these values to count by.
    #[inline(always)]
    fn add_checks<'r, 'v>(
        &'r self,
        plan: &mut Plan<'r>,
        indexed: &'r IndexedRule,
        request: &Request<'_>,
        values: impl ExactSizeIterator<Item = Option<&'v str>> + Clone,
    ) {
        let plan_name = if indexed.plans.is_empty() { "" } else { request.attribute(PLAN).unwrap_or_default() };
        let network = indexed.address.and_then(|index| {
            let address = values.clone().nth(index).flatten().and_then(address_in_text)?;
            Some(self.networks.network(address))
        });
        let cost = indexed.rule.cost.unwrap_or(request.cost());
        let input =
            RuleInput { plan: plan_name, cost, on_failure: None, anonymous: indexed.rule.anonymous.is_some(), network };
        indexed.add_checks(plan, values, &input);
    }

    /// The same with the values in their normal forms.
    #[inline(never)]
    fn add_normal_checks<'r>(&'r self, plan: &mut Plan<'r>, indexed: &'r IndexedRule, request: &Request<'_>) {
        let normal = |(name, forms): (&SmolStr, &NormalForms)| Some(forms.apply(request.attribute(name)?.into()));
        let SubjectAttributes { names, forms } = &indexed.attributes;
        let values: SmallVec<[Option<Cow<'_, str>>; 4]> = names.iter().zip(forms).map(normal).collect();
        self.add_checks(plan, indexed, request, values.iter().map(Option::as_deref));
    }

    /// The checks of one rule alone, for explanations.
    pub fn resolve_match(&self, matched: Match<'_>) -> Plan<'_> {
        let mut plan = Plan::from_distinct(SmallVec::new());
        if let Some(rule) = self.rules.get(matched.rule) {
            rule.add_checks(&mut plan, matched.values.iter().copied(), &self.input(&matched));
        }
        plan
    }

    /// The checks of one rule alone for a subject that it has counted before. `plan` is the plan that applied. `None` if there is no such
    /// rule. If the rule counts by something else now, no request has this subject any more.
    pub fn resolve_counted(&self, rule: &str, plan: &str, counted: &CountedSubject) -> Option<Plan<'_>> {
        let indexed = &self.rules[*self.indexes.get(rule)?];
        let mut resolved = Plan::from_distinct(SmallVec::new());
        indexed.add_counted(&mut resolved, plan, counted);
        Some(resolved)
    }

    #[inline(always)]
    fn input<'m>(&self, matched: &Match<'m>) -> RuleInput<'m> {
        let Match { plan, cost, on_failure, anonymous, address, .. } = *matched;
        let network = address.map(|address| self.networks.network(address));
        RuleInput { plan, cost, on_failure, anonymous, network }
    }

    /// The names of the attributes that the rules read. A front end must set these; others may be omitted.
    pub fn reads(&self) -> Vec<String> {
        let mut names = self.matcher.as_ref().map(|matcher| matcher.reads()).unwrap_or_default();
        if self.matcher.is_none() {
            names.extend(self.rules.iter().flat_map(|indexed| &indexed.attributes.names).map(ToString::to_string));
            names.extend(self.rules.iter().any(|indexed| !indexed.plans.is_empty()).then(|| PLAN.into()));
        }
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Whether a rule reads the text of a body. [`find`](Self::find) says whether one that applies to a request does.
    pub const fn reads_body(&self) -> bool {
        self.reads_body
    }

    /// The longest body that rules read, in bytes. Front ends that read bodies for them refuse longer ones.
    pub const fn max_body_bytes(&self) -> usize {
        self.max_body_bytes
    }

    /// The header fields of responses.
    pub const fn header_policy(&self) -> &HeaderPolicy {
        &self.header_policy
    }

    /// What front ends do with escaped slashes in paths.
    pub const fn escaped_slashes(&self) -> EscapedSlashes {
        self.escaped_slashes
    }

    /// Whether a rule reads the actual cost from a response header.
    pub fn has_cost_headers(&self) -> bool {
        self.rules.iter().any(|indexed| indexed.rule.cost_header.is_some())
    }

    /// The actual cost of a request under a rule, for [settlements](crate::Ending::Settle): the whole number in the rule's
    /// cost header. `header` returns the value of a response header by its name in lower case.
    pub fn actual_cost<'h>(&self, rule: &str, header: impl Fn(&str) -> Option<&'h str>) -> Option<u64> {
        let value = header(self.rule(rule)?.cost_header.as_deref()?)?.trim();
        let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
        // A number that does not fit saturates.
        digits.then(|| value.parse().unwrap_or(MAX_AMOUNT).min(MAX_AMOUNT))
    }

    /// Whether the actual cost under a rule is the [token usage](UsageKind) of a language model.
    pub fn has_usage(&self) -> bool {
        self.rules.iter().any(|indexed| indexed.rule.usage.is_some())
    }

    /// Whether the actual cost under one of the rules of `plan` is the [token usage](UsageKind) of a language model, so that its cost
    /// is to be reserved until then.
    pub fn settles_by_usage(&self, plan: &Plan<'_>) -> bool {
        plan.rule_ids().any(|rule| self.usage(rule).is_some())
    }

    /// The tokens of a language model that are the actual cost under a rule.
    pub fn usage(&self, rule: &str) -> Option<UsageKind> {
        self.rule(rule)?.usage
    }

    /// A rule by its id; `None` if it is disabled.
    pub fn rule(&self, id: &str) -> Option<&Rule> {
        self.indexes.get(id).map(|index| &*self.rules[*index].rule)
    }

    /// The rules for `action`, in order.
    #[inline]
    fn matching(&self, action: &str) -> &[u32] {
        if self.by_action.is_empty() {
            return &self.for_any;
        }
        self.by_action.get(action).unwrap_or(&self.for_any)
    }

    /// The gate of a limit, for grants.
    pub(crate) fn gate(&self, rule: &str, plan: Option<&str>, limit: &str) -> Option<&Gate> {
        let indexed = &self.rules[*self.indexes.get(rule)?];
        let gates = match plan {
            Some(plan) => &indexed.plans.iter().find(|(name, _)| name == plan)?.1,
            None => &indexed.gates,
        };
        gates.iter().find(|gate| gate.limit_name() == limit)
    }

    /// The key of `subject` under a `gate` of these rules, whose keys were in `partition` when it was counted.
    pub(crate) fn key_of_grant<'r>(&'r self, gate: &'r Gate, partition: u16, subject: Subject) -> Option<Key<'r>> {
        let indexed = &self.rules[*self.indexes.get(&gate.rule().id)?];
        Some(indexed.key_of_grant(gate, partition, subject))
    }
}
