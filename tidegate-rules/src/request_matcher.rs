//! `RequestMatcher`: finds the rules that apply to a request, with the subject and the cost under each. Pure.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use smallvec::SmallVec;
use smol_str::{SmolStr, format_smolstr};
use tidegate::rules::OnMissing;
use tidegate::spi::{BodyNeed, BodyUse, Match, Matcher, RequestMemo, RequestProblemKind};
use tidegate::{Request, RequestProblem, Rule, RuleMode, attributes};

use crate::condition::Condition;
use crate::cost::Cost;
use crate::failure_policy::FailurePolicy;
use crate::identity::{Identity, IdentityConfig, IdentityValue, Source};
use crate::index::{Index, RuleIndices};
use crate::provenance::Provenance;
use crate::repeated::{MAX_REPEATED_VALUES, RepeatedPolicy};
use crate::request_view::RequestView;

/// How the names of fields of the body begin in expressions.
const BODY_PREFIX: &str = "body:";

/// The part of a rule file that requests are matched with.
#[derive(Debug)]
pub struct RequestMatcher {
    pub identity_config: IdentityConfig,
    pub identities: Vec<Identity>,
    pub tenant: Identity,
    /// The authenticated sources of the tenant. It alone scopes subjects and selects plans.
    pub scope: Identity,
    pub plan: Identity,
    pub plan_of_tenant: HashMap<SmolStr, SmolStr>,
    pub default_plan: SmolStr,
    pub exempt: Vec<Condition>,
    /// The rules that each exemption is limited to; `None` for all rules.
    pub exempt_rules: Vec<Option<HashSet<SmolStr>>>,
    pub exempt_index: Index,
    pub exempt_rest: Vec<Option<Box<Condition>>>,
    /// The rules that are not disabled, in the order of the file.
    pub rules: Vec<RuleMatcher>,
    pub index: Index,
    /// The size of a body whose length is not known, in bytes.
    pub unknown_size: u64,
    /// The longest body that is read. A request with a longer one is refused.
    pub max_body_bytes: usize,
    /// The attributes that the file reads.
    pub reads: HashSet<SmolStr>,
    /// The fields of a body that the file reads.
    pub body_fields: Vec<SmolStr>,
}

/// The part of a rule that requests are matched with.
#[derive(Clone, Debug)]
pub struct RuleMatcher {
    pub rule: Arc<Rule>,
    pub condition: Box<Condition>,
    /// The part of the condition that the index does not check; `None` for most rules.
    pub rest: Option<Box<Condition>>,
    /// What the rule counts by, except for the tenant. Shared between rules with the same `per`.
    pub per: Arc<[Identity]>,
    pub tenant: TenantUse,
    pub cost: Cost,
    /// What applies while the store fails, to requests of some routes in place of what the rule says.
    pub on_failure: FailurePolicy,
}

/// How a rule uses the tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TenantUse {
    /// Not at all.
    No,
    /// Separates the subjects of two tenants.
    Scope,
    /// As part of the subject.
    Subject,
}

/// The subject of a request under a rule: the tenant if the rule uses it, and the value of each identity.
#[derive(Clone, Debug)]
pub struct RuleSubject<'q> {
    pub tenant: Option<String>,
    pub identities: SmallVec<[Option<IdentityValue<'q>>; 1]>,
    /// Whether no part of it is authenticated.
    pub anonymous: bool,
    /// The address that it is or contains, or the first one of its network.
    pub address: Option<IpAddr>,
}

impl RequestMatcher {
    /// The exemptions that apply to a request, up to the first one from all rules.
    pub fn exemptions(&self, view: &RequestView<'_, '_>) -> RuleIndices {
        let mut candidates = RuleIndices::new();
        self.exempt_index.candidates(view, &mut candidates);
        let mut is_exempt = false;
        candidates.retain(|index| {
            let applies =
                !is_exempt && self.exempt_rest[*index as usize].as_ref().is_none_or(|rest| rest.matches(view));
            is_exempt |= applies && self.exempt_rules[*index as usize].is_none();
            applies
        });
        candidates
    }

    /// The first of these exemptions that is from all rules.
    pub fn exemption_from_all(&self, exemptions: &[u32]) -> Option<usize> {
        exemptions.iter().map(|index| *index as usize).find(|index| self.exempt_rules[*index].is_none())
    }

    /// The first of these exemptions that is from this rule.
    pub fn exemption_from(&self, rule: &str, exemptions: &[u32]) -> Option<usize> {
        let is_from = |index: &usize| self.exempt_rules[*index].as_ref().is_none_or(|rules| rules.contains(rule));
        exemptions.iter().map(|index| *index as usize).find(is_from)
    }

    /// Refuses a request in which a header that the file reads comes more than once. It does not depend on which rules apply, so that
    /// the answer to a request does not depend on how rules are indexed.
    pub(crate) fn refuse_repeated(&self, view: &RequestView<'_, '_>) {
        if !view.request.has_repeats() {
            return;
        }
        let is_refused = |name: &&str| {
            self.reads.contains(*name) && self.identity_config.repeated.policy(name) == RepeatedPolicy::Reject
        };
        if let Some(name) = view.request.repeated_names().find(is_refused) {
            view.refuse(RequestProblemKind::Repeated, name);
        }
    }

    /// The fields of a body that identities and costs read, each once.
    pub(crate) fn find_body_fields(&self) -> Vec<SmolStr> {
        let per = self.rules.iter().flat_map(|rule| rule.per.iter());
        let sources =
            self.identities.iter().chain([&self.tenant, &self.plan]).chain(per).flat_map(Identity::each_source);
        let by_source = sources.filter_map(|source| if let Source::Body(name) = source { Some(&**name) } else { None });
        let by_cost = self.rules.iter().flat_map(|rule| rule.cost.expression_reads());
        let mut names: Vec<SmolStr> =
            by_source.chain(by_cost.filter_map(|name| name.strip_prefix(BODY_PREFIX))).map(SmolStr::new).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// An identity by its name.
    pub fn named(&self, name: &str) -> Option<&Identity> {
        self.identities.iter().find(|identity| identity.name == name)
    }

    /// The value that an expression reads under a name.
    pub(crate) fn value<'q>(&self, name: &str, view: &RequestView<'_, 'q>) -> Option<Cow<'q, str>> {
        match name {
            attributes::PATH => view.path().map(Cow::Borrowed),
            attributes::SIZE => Some(view.size()),
            attributes::PLAN => Some(Cow::Owned(view.plan().to_owned())),
            attributes::HOST => view.host().map(|host| Cow::Owned(host.to_owned())),
            _ if name.starts_with(BODY_PREFIX) => view.body_text_or_number(&name[BODY_PREFIX.len()..]).map(Cow::Owned),
            _ => match self.named(name) {
                Some(identity) => identity.find(view).map(|identity| identity.value),
                None => match Source::parse(name) {
                    Ok(source) => source.read(view),
                    Err(_) => view.attribute(name).map(Cow::Borrowed),
                },
            },
        }
    }
}

impl RuleMatcher {
    /// The subject of a request.
    pub fn subject<'q>(&self, view: &RequestView<'_, 'q>) -> RuleSubject<'q> {
        let find = |identity: &Identity| match identity.name.as_str() {
            // A plan may come from the tenant; all requests of one plan share the limit that is counted by it.
            "plan" if view.plan().is_empty() => None,
            "plan" => Some(IdentityValue {
                kind: "plan".into(),
                value: view.plan().to_owned().into(),
                belongs_to_tenant: false,
                provenance: view.plan_provenance(),
                others: Vec::new(),
            }),
            _ => identity.find_all(view),
        };
        let identities: SmallVec<[_; 1]> = self.per.iter().map(find).collect();
        let tenant = match self.tenant {
            TenantUse::No => None,
            TenantUse::Scope => identities.iter().flatten().find(|value| value.belongs_to_tenant).and(view.scope()),
            TenantUse::Subject => view.tenant_value(),
        };
        let anonymous = self.is_anonymous(&identities, tenant, view);
        let tenant = tenant.map(|tenant| tenant.value.clone().into_owned());
        let address = address_of(&identities);
        RuleSubject { tenant, identities, anonymous, address }
    }

    /// The parts of the subject that a request lacks, named as in `per`.
    pub(crate) fn missing_parts<'r>(&'r self, subject: &'r RuleSubject<'_>) -> impl Iterator<Item = &'r str> {
        let tenant = self.tenant == TenantUse::Subject && subject.tenant.is_none();
        let parts = self.per.iter().zip(&subject.identities).filter(|(_, value)| value.is_none());
        tenant.then_some(attributes::TENANT).into_iter().chain(parts.map(|(identity, _)| identity.name.as_str()))
    }

    /// The first part that a request lacks, if the rule refuses the request then. A plan identifies nobody, and a part that comes from the
    /// body is not missing before the body is read.
    fn refused_part<'r>(&'r self, subject: &'r RuleSubject<'_>, view: &RequestView<'_, '_>) -> Option<&'r str> {
        if self.rule.on_missing != OnMissing::Error || self.is_shadow() {
            return None;
        }
        let may_follow = |identity: &Identity| {
            view.request.attribute(attributes::BODY).is_none()
                && identity.each_source().any(|source| matches!(source, Source::Body(_)))
        };
        let part = |name: &str| match name {
            attributes::TENANT => Some(&view.matcher.tenant),
            name => self.per.iter().find(|identity| identity.name == name),
        };
        let mut missing = self.missing_parts(subject).filter(|name| *name != attributes::PLAN);
        missing.find(|name| !part(name).is_some_and(may_follow))
    }

    /// Whether no part of the subject is authenticated. Parts that identify nobody, such as a path, do not count.
    fn is_anonymous(
        &self,
        identities: &[Option<IdentityValue<'_>>],
        tenant: Option<&IdentityValue<'_>>,
        view: &RequestView<'_, '_>,
    ) -> bool {
        let missing = (self.tenant == TenantUse::Subject).then(|| view.matcher.tenant.provenance_if_missing());
        let tenant = tenant.map(|tenant| tenant.provenance).or(missing);
        let provenance = |(identity, value): (&Identity, &Option<IdentityValue<'_>>)| match value {
            Some(value) => value.provenance,
            None if identity.name == "plan" => Provenance::NoIdentity,
            None => identity.provenance_if_missing(),
        };
        let mut provenances = self
            .per
            .iter()
            .zip(identities)
            .map(provenance)
            .chain(tenant)
            .filter(|provenance| *provenance != Provenance::NoIdentity)
            .peekable();
        provenances.peek().is_some() && provenances.all(|provenance| provenance != Provenance::Verified)
    }

    /// Whether the rule is in shadow mode.
    fn is_shadow(&self) -> bool {
        self.rule.mode == RuleMode::Shadow
    }
}

impl TenantUse {
    /// The names of the parts of a subject of `per`, in the order of [`RuleSubject::values`].
    pub(crate) fn subject_names(self, per: &[Identity]) -> Vec<SmolStr> {
        let tenant = (self != Self::No).then(|| SmolStr::new("tenant"));
        let each = per.iter().flat_map(|identity| [format_smolstr!("{}:kind", identity.name), identity.name.clone()]);
        tenant.into_iter().chain(each).collect()
    }
}

impl RuleSubject<'_> {
    /// The other subjects of the same request: one for each combination of the values of repeated cookies. Empty for most requests,
    /// without an allocation; one more than the request may have if there are too many.
    pub(crate) fn others(&self) -> Vec<Self> {
        let mut others: Vec<Self> = Vec::new();
        for (index, value) in self.identities.iter().enumerate() {
            let Some(value) = value.as_ref().filter(|value| !value.others.is_empty()) else { continue };
            let combinations: Vec<Self> = std::iter::once(self).chain(&others).cloned().collect();
            for other in &value.others {
                others.extend(combinations.iter().map(|subject| subject.with_value(index, other)));
            }
            others.truncate(MAX_REPEATED_VALUES);
        }
        others
    }

    fn with_value(&self, index: usize, value: &str) -> Self {
        let mut subject = self.clone();
        if let Some(identity) = &mut subject.identities[index] {
            identity.value = Cow::Owned(value.to_owned());
        }
        subject
    }

    /// A value for each of the [names](TenantUse::subject_names).
    pub fn values(&self, rule: &RuleMatcher) -> SmallVec<[Option<&str>; 4]> {
        let mut values = SmallVec::new();
        if rule.tenant != TenantUse::No {
            values.push(self.tenant.as_deref());
        }
        for value in &self.identities {
            values.push(value.as_ref().map(|value| value.kind.as_str()));
            values.push(value.as_ref().map(|value| &*value.value));
        }
        values
    }
}

/// The first address among the parts of a subject. A network, such as `2001:db8::/64`, begins with one.
fn address_of(identities: &[Option<IdentityValue<'_>>]) -> Option<IpAddr> {
    let value = identities.iter().flatten().find(|value| value.provenance == Provenance::Address)?;
    value.value.split('/').next()?.parse().ok()
}

impl Matcher for RequestMatcher {
    fn find(
        &self,
        request: &Request<'_>,
        memo: &RequestMemo,
        add: &mut dyn FnMut(Match<'_>),
    ) -> Result<BodyUse, RequestProblem> {
        let view = RequestView::new(request, self).with_memo(memo);
        self.refuse_repeated(&view);
        let mut candidates = RuleIndices::new();
        self.index.candidates(&view, &mut candidates);
        candidates.retain(|index| self.rules[*index as usize].rest.as_ref().is_none_or(|rest| rest.matches(&view)));
        if !candidates.is_empty() {
            let exemptions = self.exemptions(&view);
            candidates.retain(|index| self.exemption_from(&self.rules[*index as usize].rule.id, &exemptions).is_none());
        }
        if candidates.is_empty() {
            let body_use = view.take_body_use(BodyNeed::Enforced);
            return view.problem().map_or(Ok(body_use), |problem| Err(problem.clone()));
        }
        // A tenant or a plan of the body, which conditions read.
        let mut body_use = view.take_body_use(BodyNeed::Enforced);
        for index in candidates {
            let rule = &self.rules[index as usize];
            let subject = rule.subject(&view);
            if let Some(name) = rule.refused_part(&subject, &view) {
                view.refuse(RequestProblemKind::Missing, name);
            }
            let cost = rule.cost.units(&view, self);
            if rule.rule.usage.is_some() {
                view.need_body();
            }
            let need = if rule.is_shadow() { BodyNeed::Shadow } else { BodyNeed::Enforced };
            body_use = body_use.unite(view.take_body_use(need));
            let others = subject.others();
            if others.len() >= MAX_REPEATED_VALUES {
                view.refuse(RequestProblemKind::TooManyValues, attributes::COOKIE_HEADER);
            }
            for subject in std::iter::once(&subject).chain(&others) {
                let values = subject.values(rule);
                add(Match {
                    rule: index as usize,
                    plan: view.plan(),
                    values: &values,
                    cost,
                    on_failure: rule.on_failure.find(&view),
                    anonymous: subject.anonymous,
                    address: subject.address,
                });
            }
        }
        view.problem().map_or(Ok(body_use), |problem| Err(problem.clone()))
    }

    fn reads(&self) -> Vec<String> {
        let mut names: Vec<SmolStr> = Vec::new();
        let conditions = || self.rules.iter().map(|rule| &*rule.condition).chain(&self.exempt);
        for condition in conditions() {
            condition.reads(&mut names);
        }
        if conditions().any(|condition| !condition.networks.is_empty()) {
            Source::Ip.reads(&self.identity_config, &mut names);
        }
        for rule in &self.rules {
            rule.per.iter().for_each(|identity| identity.reads(&self.identity_config, &mut names));
            rule.cost.reads(self, &mut names);
            names.extend(rule.rule.usage.map(|_| attributes::BODY.into()));
            rule.on_failure.reads(&mut names);
        }
        // Plans and scopes may need these whatever the rules count by.
        self.tenant.reads(&self.identity_config, &mut names);
        self.plan.reads(&self.identity_config, &mut names);
        names.into_iter().map(String::from).collect()
    }
}

#[cfg(test)]
mod tests {
    use tidegate::spi::Check;

    use super::*;
    use crate::RuleFile;

    /// The tests of explanations have every case.
    #[test]
    fn a_match_contains_the_authentication_of_the_subject_and_the_failure_policy() {
        let file = RuleFile::parse(
            "rules.yaml",
            "version: 1\nidentify: { client: [header:x-key, ip], authenticated: x-key }\nrules:\n\
             - { id: a, per: [client], on_failure: { POST: closed }, token_bucket: { capacity: 1, refill: 1/s } }\n",
        );
        let matcher = file.unwrap_or_else(|report| panic!("{report}")).compiled.matcher.clone();
        let matches = |attributes: &[(&'static str, &'static str)]| {
            let mut matches = Vec::new();
            let start = Request::new("").with_attribute("ip", "192.0.2.1");
            let request = attributes.iter().fold(start, |request, (name, value)| request.with_attribute(name, value));
            matcher
                .find(&request, &RequestMemo::new(), &mut |rule| matches.push((rule.anonymous, rule.on_failure)))
                .unwrap();
            matches
        };
        assert_eq!(matches(&[]), [(true, None)]);
        assert_eq!(matches(&[("header:x-key", "k")]), [(false, None)]);
        assert_eq!(matches(&[("method", "POST")]), [(true, Some(tidegate::OnFailure::Closed))]);
    }

    /// For front ends that can bring more of the body, or let no more of it pass.
    #[test]
    fn a_plan_says_how_it_depends_on_a_body_that_it_does_not_know() {
        let text = "version: 1\nunknown_size: 10k\nrules:\n\
             - { id: s, match: { path: /x/size }, per: [], cost: 1 + request.size / 1000, token_bucket: { capacity: 50, refill: 1/s } }\n\
             - { id: b, match: { path: '/{page}' }, per: ['body:account'], token_bucket: { capacity: 5, refill: 1/s } }\n";
        let file = RuleFile::parse("rules.yaml", text).unwrap_or_else(|report| panic!("{report}"));
        let shadow = text.replace("per:", "mode: shadow, per:");
        let shadow = RuleFile::parse("rules.yaml", &shadow).unwrap_or_else(|report| panic!("{report}"));
        let result = |file: &RuleFile, path: &'static str, size: Option<&'static str>| {
            let request = Request::new("").with_attribute("path", path);
            let request = size.into_iter().fold(request, |request, size| request.with_attribute("request:size", size));
            let plan = file.rules().resolve(&request);
            (plan.body_use(), plan.checks().iter().map(Check::cost).max())
        };
        let body_use = |text, size| BodyUse { text, size, assumed_size: (size != BodyNeed::None).then_some(10_000) };
        let (none, all) = (BodyNeed::None, BodyNeed::Enforced);
        assert_eq!(result(&file, "/x/size", None), (body_use(none, all), Some(11)));
        assert_eq!(result(&file, "/x/size", Some("2000")), (body_use(none, none), Some(3)));
        for unknown in ["", "many", "-1", "0x10", "1 "] {
            assert_eq!(result(&file, "/x/size", Some(unknown)), (body_use(none, all), Some(11)), "{unknown}");
        }
        assert_eq!(result(&file, "/body", None).0, body_use(all, none));
        assert_eq!(result(&file, "/x%2Fsize", None).0, body_use(all, all), "one reading for each rule");
        assert_eq!(result(&file, "/x/other", None), (BodyUse::default(), None));
        assert_eq!(result(&shadow, "/x%2Fsize", None).0, body_use(BodyNeed::Shadow, BodyNeed::Shadow));
        let request = Request::new("").with_attribute("path", "/body").with_attribute("body", "{}");
        assert_eq!(file.rules().resolve(&request).body_use(), BodyUse::default());
        let default = "version: 1\nrules:\n- { id: s, per: [], cost: request.size, token_bucket: { capacity: 5, refill: 1/s } }\n";
        let default = RuleFile::parse("rules.yaml", default).unwrap_or_else(|report| panic!("{report}"));
        assert_eq!(result(&default, "/", None).0.assumed_size, Some(2 * 1024 * 1024));
    }
}
