//! Rules that never apply at a front end that they are meant for.

use tidegate::attributes;

use crate::compile::CompiledRule;
use crate::compiled_file::CompiledFile;
use crate::front_door::FrontDoor;
use crate::identity::Source;
use crate::problem::Problem;
use crate::request_matcher::RequestMatcher;

/// The code of the finding that a rule never applies at a front end.
pub const NEVER_APPLIES: &str = "never-applies";

/// Why a rule never applies at a front end, whatever its `front_ends` say.
#[derive(Clone, Debug)]
pub struct NeverApplies {
    /// What the rule matches by, as the file names it.
    pub source: String,
    /// The source that the front end never has, if there is one.
    pub missing: Option<Source>,
}

/// An error for each listed front end at which the rule never applies: the file contradicts itself.
pub(super) fn check(file: &CompiledFile, rule: &CompiledRule, problems: &mut Vec<Problem>) {
    for (door, span) in rule.front_ends.listed() {
        let Some(reason) = NeverApplies::find(rule, *door, &file.matcher) else { continue };
        let (id, source, title) = (&rule.id, &reason.source, door.title());
        let message = format!(
            "rule `{id}` is meant for {title}, and never applies there: it matches by `{source}`, which {title} never has"
        );
        problems.push(Problem::error(NEVER_APPLIES, message, span.clone()).with_help(reason.help()));
    }
}

impl NeverApplies {
    /// `None` if the rule may apply.
    pub fn find(rule: &CompiledRule, door: FrontDoor, matcher: &RequestMatcher) -> Option<Self> {
        let (condition, tenant) = (&rule.matcher.condition, &matcher.tenant);
        let reason = |source: &str, missing: Option<&Source>| {
            Some(Self { source: source.to_owned(), missing: missing.cloned() })
        };
        if !condition.actions.is_empty() && !door.has(&Source::Action) {
            return reason("action", Some(&Source::Action));
        }
        if !condition.tenants.is_empty() && !door.has_identity(tenant) {
            return reason("tenant", tenant.each_source().next());
        }
        if !condition.plans.is_empty() && !condition.plans.iter().any(|plan| has_plan(door, plan, matcher)) {
            return reason("plan", matcher.plan.each_source().next());
        }
        let header = |name| Source::Attribute(Clone::clone(name));
        let mut names = condition.headers.iter().map(|(name, _)| name);
        names.find(|name| !door.has(&header(*name))).and_then(|name| reason(name, Some(&header(name))))
    }

    /// What to write: a constant sentence, which never repeats a value of the file.
    pub fn help(&self) -> &'static str {
        match &self.missing {
            Some(Source::Action) => {
                "match a path, such as `match: { method: POST, path: /login }`; if the rule is meant for callers that send actions, say so: \
                 `front_ends: [check]`"
            }
            Some(Source::Attribute(name)) if attributes::header_name(name).is_some() => {
                "match another header; if the rule is meant for another front end, say so: `front_ends: [check]`"
            }
            Some(Source::Body(_)) => {
                "let the proxy send the value as a header; if the rule is meant for a front end with bodies, say so: `front_ends: [gateway]`"
            }
            _ => {
                "let the proxy in front set a header, list it below `authenticated`, and read `header:NAME` below `identify`; if the rule is \
                 meant for callers that send the value, say so: `front_ends: [check]`"
            }
        }
    }
}

/// Whether a request through the door can have this plan.
fn has_plan(door: FrontDoor, plan: &str, matcher: &RequestMatcher) -> bool {
    let by_tenant = || matcher.plan_of_tenant.values().any(|of_tenant| of_tenant == plan);
    door.has_identity(&matcher.plan)
        || matcher.default_plan == plan
        || (door.has_identity(&matcher.scope) && by_tenant())
}
