//! What the callers of a front end must send for each rule: a door that has only what it is told cannot know what is missing.

use smol_str::SmolStr;
use tidegate::attributes;
use tidegate_rules::internals::{CompiledRule, Cost, Identity, RequestMatcher, Source, TenantUse, compiled};
use tidegate_rules::{FrontDoor, Problem, RuleFile};

use crate::lint::{NEEDED_AT_DOOR, list_names};

/// One note for each rule that needs something of the caller.
pub(super) fn problems(file: &RuleFile, door: FrontDoor) -> Vec<Problem> {
    let (subject, help) = match door {
        FrontDoor::Check => {
            ("the call must have", "a value that is missing counts as one value for all; see `/openapi.json`")
        }
        FrontDoor::Tower => {
            ("your program must set", "a value that is missing counts as one value for all; see docs/tower.md")
        }
        FrontDoor::Envoy => (
            "a descriptor must have",
            "a value that is missing counts as one value for all; give the entries these keys (`descriptor_key`); see \
             docs/envoy.md",
        ),
        FrontDoor::Library => {
            ("your program must set", "a value that is missing counts as one value for all; see docs/rules.md")
        }
        // The others have the whole request by themselves.
        _ => return Vec::new(),
    };
    let file = compiled(file);
    file.enabled_rules()
        .filter_map(|rule| {
            let mut needed: Vec<String> = Vec::new();
            for name in sources(rule, &file.matcher).iter().filter_map(|source| needed_value(door, source)) {
                if !needed.contains(&name) {
                    needed.push(name);
                }
            }
            let id = &rule.id;
            let message = format!("for rule `{id}` at {}, {subject} {}", door.title(), list_names(&needed)?);
            Some(Problem::note(NEEDED_AT_DOOR, message, rule.id_span.clone()).with_help(help))
        })
        .collect()
}

/// Everything that a rule reads.
fn sources(rule: &CompiledRule, matcher: &RequestMatcher) -> Vec<Source> {
    let (condition, mut sources) = (&rule.matcher.condition, Vec::new());
    let mut names: Vec<SmolStr> = Vec::new();
    condition.reads(&mut names);
    rule.matcher.on_failure.reads(&mut names);
    if !condition.actions.is_empty() {
        sources.push(Source::Action);
    }
    if !condition.networks.is_empty() {
        sources.push(Source::Ip);
    }
    let by_tenant = !condition.tenants.is_empty() || rule.matcher.tenant == TenantUse::Subject;
    let tenant = by_tenant.then_some(&matcher.tenant);
    let plan = (!condition.plans.is_empty()).then_some(&matcher.plan);
    for identity in tenant.into_iter().chain(plan).chain(rule.matcher.per.iter()) {
        sources.extend(identity_sources(identity));
    }
    if let Cost::Table(table) = &rule.matcher.cost {
        table.routes.reads(&mut names);
        names.extend_from_slice(table.from.names());
    }
    for name in names {
        match matcher.named(&name) {
            Some(identity) => sources.extend(identity_sources(identity)),
            None => sources.push(Source::parse(&name).unwrap_or(Source::Attribute(name))),
        }
    }
    sources
}

fn identity_sources(identity: &Identity) -> Vec<Source> {
    if identity.sources.is_empty() {
        return vec![Source::Attribute(identity.name.clone())];
    }
    identity.each_source().cloned().collect()
}

/// The name of a value in a call of this door; `None` if the door has it by itself.
fn needed_value(door: FrontDoor, source: &Source) -> Option<String> {
    let (check, tower, envoy) = match source {
        Source::Ip | Source::Net(_) => {
            ("`ip`".to_owned(), Some("the peer (`with_peer`)".to_owned()), "`remote_address`".to_owned())
        }
        Source::Attribute(name) if name == attributes::METHOD => ("`method`".to_owned(), None, "`:method`".to_owned()),
        Source::Attribute(name) if name == attributes::SIZE => {
            ("`size`".to_owned(), None, format!("`{}`", attributes::CONTENT_LENGTH_HEADER))
        }
        Source::Attribute(name) => match attributes::header_name(name) {
            Some(header) => (format!("header `{header}`"), None, format!("`{name}`")),
            None => (format!("attribute `{name}`"), Some(format!("`{name}` (`with_attributes`)")), format!("`{name}`")),
        },
        Source::Query(_) => ("`path` with its query".to_owned(), None, "`:path`".to_owned()),
        Source::Cookie(_) => ("header `cookie`".to_owned(), None, format!("`{}`", attributes::COOKIE_HEADER)),
        Source::Claim(_) => {
            ("the header with the token".to_owned(), None, "the header with the token, as `header:NAME`".to_owned())
        }
        Source::Body(_) => ("`body`".to_owned(), Some("the body (`BufferBody`)".to_owned()), "`body`".to_owned()),
        Source::Path => ("`path`".to_owned(), None, "`:path`".to_owned()),
        Source::Host => ("`host`".to_owned(), None, "`:authority`".to_owned()),
        Source::Action => (
            "`action`".to_owned(),
            Some("the action (`with_action`)".to_owned()),
            "the action as its domain".to_owned(),
        ),
        Source::Constant(_) => return None,
    };
    match door {
        FrontDoor::Check => Some(check),
        FrontDoor::Tower => tower,
        FrontDoor::Envoy => Some(envoy),
        FrontDoor::Library => library_value(source),
        _ => None,
    }
}

/// What a program sets on a request of the library for a source.
fn library_value(source: &Source) -> Option<String> {
    let attribute = match source {
        Source::Ip | Source::Net(_) => attributes::IP,
        Source::Attribute(name) => name.as_str(),
        Source::Query(_) => attributes::QUERY,
        Source::Cookie(_) => attributes::COOKIE_HEADER,
        Source::Claim(_) => return Some("the header with the token, as `header:NAME`".to_owned()),
        Source::Body(_) => attributes::BODY,
        Source::Path => attributes::PATH,
        Source::Host => attributes::HOST,
        Source::Action => return Some("the action".to_owned()),
        Source::Constant(_) => return None,
    };
    Some(format!("`{attribute}`"))
}
