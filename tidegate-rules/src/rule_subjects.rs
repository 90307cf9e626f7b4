//! `RuleFile::for_each_subject`: the subject of a request under every rule, whether or not the rule matches the request. An operator
//! looks up a customer by who it is, without knowing which request was denied.

use std::collections::BTreeSet;

use smol_str::SmolStr;
use tidegate::attributes::{COOKIE_HEADER, PATH, normalize_path};
use tidegate::spi::{Match, RequestProblemKind};
use tidegate::{Request, RequestProblem};

use crate::RuleFile;
use crate::condition::Condition;
use crate::identity::Identity;
use crate::provenance::Provenance;
use crate::repeated::MAX_REPEATED_VALUES;
use crate::request_matcher::{RuleMatcher, RuleSubject, TenantUse};
use crate::request_view::RequestView;

/// Whether a request has a subject of its own under a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SubjectStatus {
    /// Every part of the subject is known.
    Known,
    /// Every part of the subject is known, but not its tenant, and the rule counts the subjects of each tenant separately. Only in a file
    /// that speaks of tenants.
    WithoutTenant,
    /// All senders share the limit: the rule counts by nothing, or by a path, a constant or a plan alone.
    Shared,
    /// The request lacks these parts, named as in `per`.
    Incomplete(Vec<String>),
}

impl RuleFile {
    /// Calls `visit` for every rule that is not disabled, in the order of the file: with its id, whether the subject of `request` under
    /// it is known, and the match for [`resolve_match`](tidegate::RuleSet::resolve_match), with a cost of 1. The conditions of the
    /// rule are not evaluated. A rule that counts each value of a repeated cookie is visited once for each.
    ///
    /// An error means that the request does not describe one subject, such as by two API keys, whatever was visited before.
    pub fn for_each_subject(
        &self,
        request: &Request<'_>,
        visit: &mut dyn FnMut(&str, SubjectStatus, Match<'_>),
    ) -> Result<(), RequestProblem> {
        let path = request.attribute(PATH).map(normalize_path);
        let request = match &path {
            Some(path) => request.clone().with_replaced_attribute(PATH, path),
            None => request.clone(),
        };
        let view = RequestView::new(&request, &self.compiled.matcher);
        self.compiled.matcher.refuse_repeated(&view);
        let has_tenants = self.has_tenants();
        for (index, rule) in self.compiled.matcher.rules.iter().enumerate() {
            let subject = rule.subject(&view);
            let status = status(rule, &subject, has_tenants && view.tenant().is_none());
            let is_known = matches!(status, SubjectStatus::Known | SubjectStatus::WithoutTenant);
            let others = if is_known { subject.others() } else { Vec::new() };
            if others.len() >= MAX_REPEATED_VALUES {
                view.refuse(RequestProblemKind::TooManyValues, COOKIE_HEADER);
            }
            for subject in std::iter::once(&subject).chain(&others) {
                let values = subject.values(rule);
                let matched = Match {
                    rule: index,
                    plan: view.plan(),
                    values: &values,
                    cost: 1,
                    on_failure: None,
                    anonymous: subject.anonymous,
                    address: subject.address,
                };
                visit(&rule.rule.id, status.clone(), matched);
            }
        }
        view.problem().map_or(Ok(()), |problem| Err(problem.clone()))
    }

    /// Whether a rule counts by something that identifies a sender. All senders share the limit of one that does not, of which the subject is
    /// a path, a constant, a plan or nothing. `None` if there is no such rule, or it is disabled.
    pub fn identifies_subjects(&self, id: &str) -> Option<bool> {
        let rule = self.compiled.matcher.rules.iter().find(|matcher| matcher.rule.id == id)?;
        let identifies =
            |identity: &Identity| identity.name != "plan" && identity.provenance_if_missing() != Provenance::NoIdentity;
        Some(rule.tenant == TenantUse::Subject || rule.per.iter().any(identifies))
    }

    /// The tenants that the file names: those with a plan, and those of conditions.
    pub fn tenants(&self) -> BTreeSet<&str> {
        let conditions = self.conditions().flat_map(|condition| &condition.tenants);
        self.compiled.matcher.plan_of_tenant.keys().chain(conditions).map(SmolStr::as_str).collect()
    }

    /// Whether the file speaks of tenants. In others, only an application that sets them separates subjects by tenant.
    fn has_tenants(&self) -> bool {
        !self.compiled.matcher.tenant.sources.is_empty()
            || !self.compiled.matcher.plan_of_tenant.is_empty()
            || self.compiled.matcher.rules.iter().any(|rule| rule.tenant == TenantUse::Subject)
            || self.conditions().any(|condition| !condition.tenants.is_empty())
    }

    fn conditions(&self) -> impl Iterator<Item = &Condition> {
        self.compiled.matcher.rules.iter().map(|rule| &*rule.condition).chain(&self.compiled.matcher.exempt)
    }
}

fn status(rule: &RuleMatcher, subject: &RuleSubject<'_>, lacks_tenant: bool) -> SubjectStatus {
    let missing: Vec<String> = rule.missing_parts(subject).map(str::to_owned).collect();
    let identifies =
        |value: &crate::identity::IdentityValue<'_>| value.provenance != Provenance::NoIdentity && value.kind != "plan";
    if !missing.is_empty() {
        SubjectStatus::Incomplete(missing)
    } else if lacks_tenant && rule.tenant == TenantUse::Scope && belongs_to_tenant(subject) {
        SubjectStatus::WithoutTenant
    } else if subject.tenant.is_some() || subject.identities.iter().flatten().any(identifies) {
        SubjectStatus::Known
    } else {
        SubjectStatus::Shared
    }
}

fn belongs_to_tenant(subject: &RuleSubject<'_>) -> bool {
    subject.identities.iter().flatten().any(|value| value.belongs_to_tenant)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = "
version: 1
identify:
  client: [header:x-api-key, ip]
  user: header:x-user-id
  tenant: header:x-tenant-id
  authenticated: [x-api-key, x-user-id, x-tenant-id]
rules:
  - { id: search, match: { path: /search }, per: [client], token_bucket: { capacity: 5, refill: 1/s }, on_failure: share }
  - { id: user, match: { path: /me }, per: [user], token_bucket: { capacity: 5, refill: 1/s }, on_failure: share }
  - { id: team, match: { path: /t }, per: [tenant, user], token_bucket: { capacity: 5, refill: 1/s }, on_failure: share }
  - { id: all, per: [], token_bucket: { capacity: 5, refill: 1/s }, on_failure: share }
  - { id: route, per: [path], token_bucket: { capacity: 5, refill: 1/s }, on_failure: share }
  - { id: off, per: [client], mode: disabled, token_bucket: { capacity: 5, refill: 1/s }, on_failure: share }
";

    fn statuses(attributes: &[(&'static str, &'static str)]) -> Vec<(String, SubjectStatus)> {
        let file = RuleFile::parse("rules.yaml", RULES).unwrap_or_else(|report| panic!("{report}"));
        let add = |request: Request<'static>, (name, value): &(&'static str, &'static str)| {
            request.with_attribute(name, value)
        };
        let (request, mut found) = (attributes.iter().fold(Request::new(""), add), Vec::new());
        file.for_each_subject(&request, &mut |id, status, _| found.push((id.to_owned(), status))).unwrap();
        found
    }

    #[test]
    fn each_rule_reports_whether_it_knows_the_subject_although_it_does_not_match() {
        use SubjectStatus::{Incomplete, Known, Shared, WithoutTenant};
        let lacks = |names: &[&str]| Incomplete(names.iter().map(|name| (*name).to_owned()).collect());
        let expect = |statuses: [SubjectStatus; 5]| {
            let ids = ["search", "user", "team", "all", "route"].map(str::to_owned);
            ids.into_iter().zip(statuses).collect::<Vec<_>>()
        };
        assert_eq!(
            statuses(&[("header:x-api-key", "k1")]),
            expect([WithoutTenant, lacks(&["user"]), lacks(&["tenant", "user"]), Shared, lacks(&["path"])])
        );
        assert_eq!(
            statuses(&[("header:x-user-id", "u1"), ("header:x-tenant-id", "t1"), ("path", "/x")]),
            expect([lacks(&["client"]), Known, Known, Shared, Shared])
        );
        // An address belongs to no tenant.
        assert_eq!(statuses(&[("ip", "192.0.2.1")])[0].1, Known);
    }

    #[test]
    fn a_rule_that_counts_a_path_or_nothing_identifies_no_subject() {
        let file = RuleFile::parse("rules.yaml", RULES).unwrap_or_else(|report| panic!("{report}"));
        let identifies = ["search", "team", "all", "route", "off", "none"].map(|id| file.identifies_subjects(id));
        assert_eq!(identifies, [Some(true), Some(true), Some(false), Some(false), None, None]);
    }

    #[test]
    fn a_file_without_tenants_does_not_miss_them() {
        let text = "version: 1\nidentify: { client: header:x-api-key, authenticated: [x-api-key] }\nrules:\n\
                    - { id: a, per: [client], token_bucket: { capacity: 5, refill: 1/s }, on_failure: share }\n";
        let key = Request::new("").with_attribute("header:x-api-key", "k1");
        let status = |text: &str| {
            let file = RuleFile::parse("rules.yaml", text).unwrap_or_else(|report| panic!("{report}"));
            let mut found = Vec::new();
            file.for_each_subject(&key, &mut |_, status, _| found.push(status)).unwrap();
            (found, file.tenants().into_iter().map(str::to_owned).collect::<Vec<_>>())
        };
        assert_eq!(status(text), (vec![SubjectStatus::Known], Vec::new()));
        let with_plans = format!(
            "{text}plans: {{ pro: {{ a: {{ token_bucket: {{ capacity: 9, refill: 1/s }} }} }} }}\ntenants: {{ acme: pro }}\n"
        );
        assert_eq!(status(&with_plans), (vec![SubjectStatus::WithoutTenant], vec!["acme".to_owned()]));
    }

    /// The bucket of a customer who is looked up is the bucket that its request is counted in.
    #[test]
    fn the_key_is_that_of_a_request_that_the_rule_matches() {
        let file = RuleFile::parse("rules.yaml", RULES).unwrap_or_else(|report| panic!("{report}"));
        let key = Request::new("").with_attribute("header:x-api-key", "k1");
        let plan = file.rules().resolve(&key.clone().with_attribute("path", "/search"));
        let counted = *plan.checks()[0].key();
        let mut keys = Vec::new();
        file.for_each_subject(&key, &mut |id, status, matched| {
            if status == SubjectStatus::WithoutTenant {
                keys.push((id.to_owned(), *file.rules().resolve_match(matched).checks()[0].key()));
            }
        })
        .unwrap();
        assert_eq!(keys, [("search".to_owned(), counted)]);
    }

    #[test]
    fn two_keys_do_not_describe_one_subject() {
        let file = RuleFile::parse("rules.yaml", RULES).unwrap_or_else(|report| panic!("{report}"));
        let keys =
            Request::new("").with_attribute("header:x-api-key", "k1").with_further_value("header:x-api-key", "k2");
        let problem = file.for_each_subject(&keys, &mut |_, _, _| ()).unwrap_err();
        assert_eq!((problem.kind(), problem.source()), (RequestProblemKind::Repeated, "header:x-api-key"));
    }
}
