//! `RequestMatcher`: from a request to the rules that it must pass, whom each counts, and at what cost. Pure.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;
use smol_str::{SmolStr, format_smolstr};
use tidegate::spi::{Match, Matcher};
use tidegate::{Request, attributes};

use crate::condition::Condition;
use crate::cost::Cost;
use crate::failure_policy::FailurePolicy;
use crate::identity::{Identity, IdentityConfig, IdentityValue, Source};
use crate::index::{Index, RuleIndices};
use crate::provenance::Provenance;
use crate::request_view::RequestView;

/// Everything about a rule file that a request is held against.
#[derive(Debug)]
pub(crate) struct RequestMatcher {
    pub(crate) identity_config: IdentityConfig,
    pub(crate) identities: Vec<Identity>,
    pub(crate) tenant: Identity,
    pub(crate) plan: Identity,
    pub(crate) plan_of_tenant: HashMap<SmolStr, SmolStr>,
    pub(crate) default_plan: SmolStr,
    pub(crate) exempt: Vec<Condition>,
    pub(crate) exempt_index: Index,
    pub(crate) exempt_rest: Vec<Option<Box<Condition>>>,
    /// The rules that are not disabled, in the order of the file.
    pub(crate) rules: Vec<RuleMatcher>,
    pub(crate) index: Index,
}

/// What is needed of a rule to match it and to count by it.
#[derive(Clone, Debug)]
pub(crate) struct RuleMatcher {
    pub(crate) id: SmolStr,
    pub(crate) condition: Box<Condition>,
    /// What is left of the condition once the index has brought the rule up; nothing for most.
    pub(crate) rest: Option<Box<Condition>>,
    /// Whom it counts by, the tenant apart. Rules that count alike share it.
    pub(crate) per: Arc<[Identity]>,
    pub(crate) tenant: TenantUse,
    pub(crate) cost: Cost,
    pub(crate) on_failure: FailurePolicy,
}

/// What the tenant has to do with whom a rule counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TenantUse {
    /// Nothing.
    No,
    /// It tells subjects apart that belong to a tenant.
    Scope,
    /// The rule counts by it.
    Subject,
}

/// Whom a rule counts: the tenant if it matters, and who was found for each name.
#[derive(Clone, Debug)]
pub(crate) struct RuleSubject<'q> {
    pub(crate) tenant: Option<String>,
    pub(crate) found: SmallVec<[Option<IdentityValue<'q>>; 1]>,
    /// Whether nobody vouches for any of it.
    pub(crate) anonymous: bool,
}

impl RequestMatcher {
    /// The exemption that applies to a request, if one does.
    pub(crate) fn exemption(&self, view: &RequestView<'_, '_>) -> Option<usize> {
        let mut candidates = RuleIndices::new();
        self.exempt_index.candidates(view, &mut candidates);
        let applies = |place: &u32| self.exempt_rest[*place as usize].as_ref().is_none_or(|rest| rest.fits(view));
        candidates.into_iter().find(applies).map(|place| place as usize)
    }

    /// An identity by its name.
    pub(crate) fn named(&self, name: &str) -> Option<&Identity> {
        self.identities.iter().find(|identity| identity.name == name)
    }

    /// What an expression sees under a name.
    pub(crate) fn value<'q>(&self, name: &str, view: &RequestView<'_, 'q>) -> Option<Cow<'q, str>> {
        match name {
            attributes::PATH => view.path().map(|path| Cow::Owned(path.to_owned())),
            attributes::PLAN => Some(Cow::Owned(view.plan().to_owned())),
            attributes::HOST => view.host().map(|host| Cow::Owned(host.to_owned())),
            _ => match self.named(name) {
                Some(identity) => identity.find(view).map(|found| found.value),
                None => match Source::parse(name) {
                    Ok(source) => source.read(view),
                    Err(_) => view.request.attribute(name).map(Cow::Borrowed),
                },
            },
        }
    }
}

impl RuleMatcher {
    /// Whom it counts.
    pub(crate) fn counted<'q>(&self, view: &RequestView<'_, 'q>) -> RuleSubject<'q> {
        let find = |identity: &Identity| match identity.name.as_str() {
            // A plan may come from the tenant, and those who have the same one share what is counted by it.
            "plan" if view.plan().is_empty() => None,
            "plan" => Some(IdentityValue {
                kind: "plan".into(),
                value: view.plan().to_owned().into(),
                belongs_to_tenant: false,
                provenance: view.plan_provenance(),
            }),
            _ => identity.find(view),
        };
        let found: SmallVec<[_; 1]> = self.per.iter().map(find).collect();
        let scoped = match self.tenant {
            TenantUse::No => false,
            TenantUse::Scope => found.iter().flatten().any(|found| found.belongs_to_tenant),
            TenantUse::Subject => true,
        };
        let tenant = if scoped { view.tenant().map(str::to_owned) } else { None };
        let anonymous = self.is_anonymous(&found, tenant.is_some(), view);
        RuleSubject { tenant, found, anonymous }
    }

    /// Whether nobody vouches for any part of whom it counts. What does not say who it is, such as a path, is no such part.
    fn is_anonymous(&self, found: &[Option<IdentityValue<'_>>], with_tenant: bool, view: &RequestView<'_, '_>) -> bool {
        let by_tenant = with_tenant || self.tenant == TenantUse::Subject;
        let tenant = by_tenant.then(|| view.tenant_provenance());
        let provenance = |(identity, found): (&Identity, &Option<IdentityValue<'_>>)| match found {
            Some(found) => found.provenance,
            None if identity.name == "plan" => Provenance::NoIdentity,
            None => identity.provenance_if_missing(),
        };
        let mut provenances = self
            .per
            .iter()
            .zip(found)
            .map(provenance)
            .chain(tenant)
            .filter(|provenance| *provenance != Provenance::NoIdentity)
            .peekable();
        provenances.peek().is_some() && provenances.all(|provenance| provenance != Provenance::Verified)
    }

    /// The names of what it counts by, in the order of [`RuleSubject::values`].
    pub(crate) fn names(&self) -> Vec<SmolStr> {
        let tenant = (self.tenant != TenantUse::No).then(|| SmolStr::new("tenant"));
        let each =
            self.per.iter().flat_map(|identity| [format_smolstr!("{}:kind", identity.name), identity.name.clone()]);
        tenant.into_iter().chain(each).collect()
    }
}

impl RuleSubject<'_> {
    /// A value for each of the rule's [names](Matched::names).
    pub(crate) fn values(&self, rule: &RuleMatcher) -> SmallVec<[Option<&str>; 4]> {
        let mut values = SmallVec::new();
        if rule.tenant != TenantUse::No {
            values.push(self.tenant.as_deref());
        }
        for found in &self.found {
            values.push(found.as_ref().map(|found| found.kind.as_str()));
            values.push(found.as_ref().map(|found| &*found.value));
        }
        values
    }
}

impl Matcher for RequestMatcher {
    fn find(&self, request: &Request<'_>, found: &mut dyn FnMut(Match<'_>)) {
        let view = RequestView::new(request, self);
        let mut candidates = RuleIndices::new();
        self.index.candidates(&view, &mut candidates);
        candidates.retain(|place| self.rules[*place as usize].rest.as_ref().is_none_or(|rest| rest.fits(&view)));
        if candidates.is_empty() || self.exemption(&view).is_some() {
            return;
        }
        for place in candidates {
            let rule = &self.rules[place as usize];
            let counted = rule.counted(&view);
            let cost = rule.cost.of(&view, self);
            let values = counted.values(rule);
            found(Match {
                rule: place as usize,
                plan: view.plan(),
                values: &values,
                cost,
                on_failure: rule.on_failure.of(&view),
                anonymous: counted.anonymous,
            });
        }
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
            rule.on_failure.reads(&mut names);
        }
        // Plans and scopes may ask for these whatever the rules count by.
        self.tenant.reads(&self.identity_config, &mut names);
        self.plan.reads(&self.identity_config, &mut names);
        names.into_iter().map(String::from).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RuleFile;

    /// What stores are told is what an explanation tells; the tests of the latter have every case.
    #[test]
    fn a_match_says_whether_nobody_vouches_and_what_happens_on_failure() {
        let file = RuleFile::parse(
            "rules.yaml",
            "version: 1\nidentify: { client: [header:x-key, ip], authenticated: x-key }\nrules:\n\
             - { id: a, per: [client], on_failure: { POST: closed }, token_bucket: { capacity: 1, refill: 1/s } }\n",
        );
        let matcher = file.unwrap_or_else(|report| panic!("{report}")).matcher;
        let told = |attributes: &[(&'static str, &'static str)]| {
            let mut told = Vec::new();
            let start = Request::new("").with_attribute("ip", "192.0.2.1");
            let request = attributes.iter().fold(start, |request, (name, value)| request.with_attribute(name, value));
            matcher.find(&request, &mut |found| told.push((found.anonymous, found.on_failure)));
            told
        };
        assert_eq!(told(&[]), [(true, None)]);
        assert_eq!(told(&[("header:x-key", "k")]), [(false, None)]);
        assert_eq!(told(&[("method", "POST")]), [(true, Some(tidegate::OnFailure::Closed))]);
    }
}
