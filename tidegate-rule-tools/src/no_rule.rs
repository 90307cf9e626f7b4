//! `no_rule`: what a request that no rule matches may have meant. It quotes rules only, and nothing of the request.

use smol_str::SmolStr;
use tidegate::attributes::PATH;
use tidegate::{Request, attributes};
use tidegate_rules::RuleFile;
use tidegate_rules::internals::{CompiledRule, Condition, PathPattern, RequestView, Segment, compiled, nearest};

use crate::condition_mismatch::mismatch;
use crate::explain::with_paths;
use crate::lint::list_names;

/// The most paths that one request is compared with.
const MAX_COMPARED_PATHS: usize = 1_000;

/// The longest part of a path that is compared.
const MAX_COMPARED_CHARS: usize = 64;

/// Says which rule is nearest to `request`, in a sentence without anything of the request. `None` if a rule matches it, or an exemption
/// from all rules applies.
pub fn no_rule(file: &RuleFile, request: &Request<'_>) -> Option<String> {
    let (rules, compiled) = (file.rules(), compiled(file));
    let matcher = &*compiled.matcher;
    let readings = request.attribute(PATH).map(|path| rules.path_readings(path));
    let paths: Vec<String> = match &readings {
        // A request whose path is refused is not judged at all.
        Some(Err(_)) => return None,
        Some(Ok(readings)) => readings.iter().map(str::to_owned).collect(),
        None => Vec::new(),
    };
    let requests = with_paths(request, &paths);
    let views: Vec<RequestView<'_, '_>> = requests.iter().map(|request| RequestView::new(request, matcher)).collect();
    let matches = |view: &RequestView<'_, '_>| {
        let is_exempt = matcher.exemption_from_all(&matcher.exemptions(view)).is_some();
        is_exempt || matcher.rules.iter().any(|rule| rule.condition.matches(view))
    };
    if views.iter().any(matches) {
        return None;
    }
    let nearest = nearest_rule(&compiled.rules, &views[0]);
    Some(["No rule matches this check.".to_owned()].into_iter().chain(nearest).collect::<Vec<_>>().join(" "))
}

fn nearest_rule<'r>(rules: &'r [CompiledRule], view: &RequestView<'_, '_>) -> Option<String> {
    let condition = |rule: &'r CompiledRule| &*rule.matcher.condition;
    if let Some(rule) = rules.iter().find(|rule| rule.is_disabled() && condition(rule).matches(view)) {
        return Some(format!("Rule `{}` would, and is disabled.", rule.id));
    }
    // A rule with this action or path that differs in one other field.
    for rule in rules {
        let Condition { actions, paths, .. } = condition(rule);
        let target = Condition { actions: actions.clone(), paths: paths.clone(), ..Condition::default() };
        let is_near = !(actions.is_empty() && paths.is_empty()) && target.matches(view);
        if let Some(mismatch) = is_near.then(|| mismatch(condition(rule), view)).flatten() {
            let (id, field, wanted) = (&rule.id, mismatch.field, mismatch.wanted);
            return Some(format!("Rule `{id}` is nearest, and wants another `{field}`: {wanted}."));
        }
    }
    nearest_action(rules, view.request.action()).or_else(|| nearest_path(rules, view.path()?))
}

fn nearest_action(rules: &[CompiledRule], action: &str) -> Option<String> {
    if action.is_empty() {
        return None;
    }
    let mut actions: Vec<&str> =
        rules.iter().flat_map(|rule| &rule.matcher.condition.actions).map(SmolStr::as_str).collect();
    actions.sort_unstable();
    actions.dedup();
    match nearest(action, actions.iter().copied()) {
        Some(action) => Some(format!("The nearest action is `{action}`.")),
        None => list_names(&actions).map(|actions| format!("The actions of rules are {actions}.")),
    }
}

fn nearest_path(rules: &[CompiledRule], path: &str) -> Option<String> {
    let paths = rules.iter().flat_map(|rule| &rule.matcher.condition.paths).take(MAX_COMPARED_PATHS);
    let distance = |pattern: &PathPattern| {
        let [pattern, path] = [filled(pattern, path), path.to_owned()].map(|text| cut(&text.to_lowercase()));
        strsim::damerau_levenshtein(&pattern, &path)
    };
    let (distance, pattern) =
        paths.clone().map(|pattern| (distance(pattern), pattern)).min_by_key(|(distance, _)| *distance)?;
    if distance <= 1 + pattern.to_string().len() / 4 {
        return Some(format!("The nearest path is `{pattern}`."));
    }
    let mut patterns: Vec<String> = paths.map(PathPattern::to_string).collect();
    patterns.sort_unstable();
    patterns.dedup();
    list_names(&patterns).map(|patterns| format!("The paths of rules are {patterns}."))
}

/// A pattern with the segments of a path in the place of those that match any.
fn filled(pattern: &PathPattern, path: &str) -> String {
    let mut rest =
        attributes::normalize_path(path).split('/').skip(1).map(str::to_owned).collect::<Vec<_>>().into_iter();
    let mut text = String::new();
    for segment in pattern.segments() {
        let own = rest.next();
        match segment {
            Segment::Literal(literal) => text.extend(["/", literal]),
            Segment::Any => text.extend(["/", own.as_deref().unwrap_or("*")]),
            Segment::Rest => {
                text.extend(own.into_iter().chain(rest.by_ref()).flat_map(|segment| ["/".to_owned(), segment]));
            }
        }
    }
    text
}

fn cut(text: &str) -> String {
    text.chars().take(MAX_COMPARED_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = "
version: 1
identify: { tenant: header:x-tenant, authenticated: [x-tenant] }
exempt: [{ path: /health }]
rules:
  - { id: rides, match: { method: POST, path: /api/rides/request }, per: [], fixed_window: { limit: 5, window: 1h } }
  - { id: trips, match: { path: '/api/trips/{id}/history' }, per: [], fixed_window: { limit: 5, window: 1h } }
  - { id: export, match: { action: export, tenant: acme }, per: [], fixed_window: { limit: 5, window: 1h } }
  - { id: login, match: { action: login }, per: [], fixed_window: { limit: 5, window: 1h } }
  - { id: old, match: { action: report }, per: [], mode: disabled, fixed_window: { limit: 5, window: 1h } }
  - { id: trial, match: { action: trial }, per: [], mode: shadow, fixed_window: { limit: 5, window: 1h } }
";

    fn no_rule(action: &str, attributes: &[(&str, &str)]) -> Option<String> {
        let file = RuleFile::parse("rules.yaml", RULES).unwrap_or_else(|report| panic!("{report}"));
        let request =
            attributes.iter().fold(Request::new(action), |request, (name, value)| request.with_attribute(name, value));
        let text = super::no_rule(&file, &request)?;
        let said = text.strip_prefix("No rule matches this check.").unwrap_or_else(|| panic!("{text}"));
        for (_, value) in attributes {
            assert!(said.contains("/api") || !said.contains(value), "{said} quotes the request");
        }
        Some(said.trim_start().to_owned())
    }

    #[test]
    fn a_request_that_a_rule_matches_or_that_is_exempt_is_no_mistake() {
        for (action, attributes) in [
            ("login", &[][..]),
            ("trial", &[]),
            ("", &[("method", "POST"), ("path", "/api/rides/request")]),
            ("", &[("method", "POST"), ("path", "/api//rides/./request")]),
            ("", &[("path", "/health")]),
        ] {
            assert_eq!(no_rule(action, attributes), None, "{action} {attributes:?}");
        }
    }

    #[test]
    fn the_nearest_rule_is_named() {
        for (action, attributes, text) in [
            ("exprot", &[][..], "The nearest action is `export`."),
            ("Login", &[], "The nearest action is `login`."),
            ("something-else", &[], "The actions of rules are export, login, report, trial."),
            ("report", &[], "Rule `old` would, and is disabled."),
            ("export", &[("tenant", "globex")], "Rule `export` is nearest, and wants another `tenant`: acme."),
            (
                "",
                &[("method", "GET"), ("path", "/api/rides/request")],
                "Rule `rides` is nearest, and wants another `method`: POST.",
            ),
            ("", &[("method", "POST"), ("path", "/api/ride/request")], "The nearest path is `/api/rides/request`."),
            ("", &[("path", "/api/trips/4711/histroy")], "The nearest path is `/api/trips/{id}/history`."),
            ("", &[("path", "/x")], "The paths of rules are /api/rides/request, /api/trips/{id}/history."),
            ("", &[("ip", "192.0.2.1")], ""),
        ] {
            assert_eq!(no_rule(action, attributes).as_deref(), Some(text), "{action} {attributes:?}");
        }
    }

    #[test]
    fn long_and_strange_paths_are_compared_in_bounded_time() {
        let path = format!("/{}", "a/".repeat(4_000));
        assert!(no_rule("", &[("path", &path)]).is_some());
        assert_eq!(
            no_rule("", &[("path", "*")]).as_deref(),
            Some("The paths of rules are /api/rides/request, /api/trips/{id}/history.")
        );
    }
}
