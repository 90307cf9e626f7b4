//! `Matching`: from a request to the rules that it must pass, whom each counts, and at what cost. Pure.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;
use smol_str::{SmolStr, format_smolstr};
use tidegate::Request;
use tidegate::spi::{Match, Matcher};

use crate::condition::Condition;
use crate::cost::Cost;
use crate::facts::Facts;
use crate::identity::{Found, Identity, Reading, Source};
use crate::index::{Index, Places};
use crate::policy::Policy;
use crate::word::Word;

/// Everything about a rule file that a request is held against.
#[derive(Debug)]
pub(crate) struct Matching {
    pub(crate) reading: Reading,
    pub(crate) identities: Vec<Identity>,
    pub(crate) tenant: Identity,
    pub(crate) plan: Identity,
    pub(crate) plan_of_tenant: HashMap<SmolStr, SmolStr>,
    pub(crate) default_plan: SmolStr,
    pub(crate) exempt: Vec<Condition>,
    pub(crate) exempt_index: Index,
    pub(crate) exempt_rest: Vec<Option<Box<Condition>>>,
    /// The rules that are not disabled, in the order of the file.
    pub(crate) rules: Vec<Matched>,
    pub(crate) index: Index,
}

/// What is needed of a rule to match it and to count by it.
#[derive(Clone, Debug)]
pub(crate) struct Matched {
    pub(crate) id: SmolStr,
    pub(crate) condition: Box<Condition>,
    /// What is left of the condition once the index has brought the rule up; nothing for most.
    pub(crate) rest: Option<Box<Condition>>,
    /// Whom it counts by, the tenant apart. Rules that count alike share it.
    pub(crate) per: Arc<[Identity]>,
    pub(crate) tenant: TenantIn,
    pub(crate) cost: Cost,
    pub(crate) on_failure: Policy,
}

/// What the tenant has to do with whom a rule counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TenantIn {
    /// Nothing.
    No,
    /// It tells subjects apart that belong to a tenant.
    Scope,
    /// The rule counts by it.
    Subject,
}

/// Whom a rule counts: the tenant if it matters, and who was found for each name.
#[derive(Clone, Debug)]
pub(crate) struct Counted<'q> {
    pub(crate) tenant: Option<String>,
    pub(crate) found: SmallVec<[Option<Found<'q>>; 1]>,
    /// Whether nobody vouches for any of it.
    pub(crate) anonymous: bool,
}

impl Matching {
    /// The exemption that applies to a request, if one does.
    pub(crate) fn exemption(&self, facts: &Facts<'_, '_>) -> Option<usize> {
        let mut candidates = Places::new();
        self.exempt_index.candidates(facts, &mut candidates);
        let applies = |place: &u32| self.exempt_rest[*place as usize].as_ref().is_none_or(|rest| rest.fits(facts));
        candidates.into_iter().find(applies).map(|place| place as usize)
    }

    /// An identity by its name.
    pub(crate) fn named(&self, name: &str) -> Option<&Identity> {
        self.identities.iter().find(|identity| identity.name == name)
    }

    /// What an expression sees under a name.
    pub(crate) fn value<'q>(&self, name: &str, facts: &Facts<'_, 'q>) -> Option<Cow<'q, str>> {
        match name {
            "path" => facts.path().map(|path| Cow::Owned(path.to_owned())),
            "plan" => Some(Cow::Owned(facts.plan().to_owned())),
            "host" => facts.host().map(|host| Cow::Owned(host.to_owned())),
            _ => match self.named(name) {
                Some(identity) => identity.find(facts).map(|found| found.value),
                None => match Source::parse(name) {
                    Ok(source) => source.read(facts),
                    Err(_) => facts.request.attribute(name).map(Cow::Borrowed),
                },
            },
        }
    }
}

impl Matched {
    /// Whom it counts.
    pub(crate) fn counted<'q>(&self, facts: &Facts<'_, 'q>) -> Counted<'q> {
        let find = |identity: &Identity| match identity.name.as_str() {
            // A plan may come from the tenant, and those who have the same one share what is counted by it.
            "plan" if facts.plan().is_empty() => None,
            "plan" => Some(Found {
                kind: "plan".into(),
                value: facts.plan().to_owned().into(),
                of_tenant: false,
                word: facts.plan_word(),
            }),
            _ => identity.find(facts),
        };
        let found: SmallVec<[_; 1]> = self.per.iter().map(find).collect();
        let scoped = match self.tenant {
            TenantIn::No => false,
            TenantIn::Scope => found.iter().flatten().any(|found| found.of_tenant),
            TenantIn::Subject => true,
        };
        let tenant = if scoped { facts.tenant().map(str::to_owned) } else { None };
        let anonymous = self.is_anonymous(&found, tenant.is_some(), facts);
        Counted { tenant, found, anonymous }
    }

    /// Whether nobody vouches for any part of whom it counts. What does not say who it is, such as a path, is no such part.
    fn is_anonymous(&self, found: &[Option<Found<'_>>], with_tenant: bool, facts: &Facts<'_, '_>) -> bool {
        let by_tenant = with_tenant || self.tenant == TenantIn::Subject;
        let tenant = by_tenant.then(|| facts.tenant_word());
        let word = |(identity, found): (&Identity, &Option<Found<'_>>)| match found {
            Some(found) => found.word,
            None if identity.name == "plan" => Word::Nobody,
            None => identity.missing(),
        };
        let mut words =
            self.per.iter().zip(found).map(word).chain(tenant).filter(|word| *word != Word::Nobody).peekable();
        words.peek().is_some() && words.all(|word| word != Word::Vouched)
    }

    /// The names of what it counts by, in the order of [`Counted::values`].
    pub(crate) fn names(&self) -> Vec<SmolStr> {
        let tenant = (self.tenant != TenantIn::No).then(|| SmolStr::new("tenant"));
        let each =
            self.per.iter().flat_map(|identity| [format_smolstr!("{}:kind", identity.name), identity.name.clone()]);
        tenant.into_iter().chain(each).collect()
    }
}

impl Counted<'_> {
    /// A value for each of the rule's [names](Matched::names).
    pub(crate) fn values(&self, rule: &Matched) -> SmallVec<[Option<&str>; 4]> {
        let mut values = SmallVec::new();
        if rule.tenant != TenantIn::No {
            values.push(self.tenant.as_deref());
        }
        for found in &self.found {
            values.push(found.as_ref().map(|found| found.kind.as_str()));
            values.push(found.as_ref().map(|found| &*found.value));
        }
        values
    }
}

impl Matcher for Matching {
    fn find(&self, request: &Request<'_>, found: &mut dyn FnMut(Match<'_>)) {
        let facts = Facts::new(request, self);
        let mut candidates = Places::new();
        self.index.candidates(&facts, &mut candidates);
        candidates.retain(|place| self.rules[*place as usize].rest.as_ref().is_none_or(|rest| rest.fits(&facts)));
        if candidates.is_empty() || self.exemption(&facts).is_some() {
            return;
        }
        for place in candidates {
            let rule = &self.rules[place as usize];
            let counted = rule.counted(&facts);
            let cost = rule.cost.of(&facts, self);
            let values = counted.values(rule);
            found(Match {
                rule: place as usize,
                plan: facts.plan(),
                values: &values,
                cost,
                on_failure: rule.on_failure.of(&facts),
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
            Source::Ip.reads(&self.reading, &mut names);
        }
        for rule in &self.rules {
            rule.per.iter().for_each(|identity| identity.reads(&self.reading, &mut names));
            rule.cost.reads(self, &mut names);
            rule.on_failure.reads(&mut names);
        }
        // Plans and scopes may ask for these whatever the rules count by.
        self.tenant.reads(&self.reading, &mut names);
        self.plan.reads(&self.reading, &mut names);
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
        let matching = file.unwrap_or_else(|report| panic!("{report}")).matching;
        let told = |attributes: &[(&'static str, &'static str)]| {
            let mut told = Vec::new();
            let start = Request::new("").with_attribute("ip", "192.0.2.1");
            let request = attributes.iter().fold(start, |request, (name, value)| request.with_attribute(name, value));
            matching.find(&request, &mut |found| told.push((found.anonymous, found.on_failure)));
            told
        };
        assert_eq!(told(&[]), [(true, None)]);
        assert_eq!(told(&[("header:x-key", "k")]), [(false, None)]);
        assert_eq!(told(&[("method", "POST")]), [(true, Some(tidegate::OnFailure::Closed))]);
    }
}
