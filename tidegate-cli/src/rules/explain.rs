//! `tidegate rules explain`: an explanation as text.
//!
//! It shows subjects, since the user has typed them; no other output of Tidegate does.

mod explanation_json;

use std::time::Duration;

use tidegate::http::ErrorFormat;
use tidegate::rules::OnOverload;
use tidegate::spi::Namespace;
use tidegate::{RuleMode, Secret};
use tidegate_rule_tools::{
    ClaimUse, Explanation, LimitExplanation, RuleEffect, RuleExplanation, RuleStatus, SubjectPart, TimelinePoint,
    explain,
};
use tidegate_rules::sanitize;
use tidegate_server::command::{Exit, Failure, Output, Style, format_duration, load_rule_file};

use crate::cli::ExplainArgs;
use explanation_json::ExplanationJson;

pub(super) fn run(arguments: &ExplainArgs, output: &mut Output<'_>) -> Result<Exit, Failure> {
    let attributes = arguments.request.attributes()?;
    let secret = arguments.secret.secret()?.unwrap_or_else(Secret::public);
    let file = load_rule_file(&arguments.file)??;
    let mut explanation = explain(&file, &attributes.request(), &secret);
    name_keys(&mut explanation, &arguments.namespace.namespace);
    if arguments.json {
        output.json(&ExplanationJson::new(&explanation));
    } else {
        print_explanation(&explanation, output);
    }
    Ok(Exit::Success)
}

/// Completes the keys by the namespace.
fn name_keys(explanation: &mut Explanation, namespace: &Namespace) {
    for rule in &mut explanation.rules {
        if let RuleStatus::Applies(effect) = &mut rule.status {
            effect.limits.iter_mut().for_each(|limit| limit.key.insert_str(0, namespace.as_str()));
        }
    }
}

fn print_explanation(explanation: &Explanation, output: &mut Output<'_>) {
    let or = |text: Option<&str>, none: &str| text.filter(|text| !text.is_empty()).map_or(none.to_owned(), sanitize);
    output.line(format_args!("client address  {}", or(explanation.client_ip.as_deref(), "unknown")));
    let ignored = if explanation.tenant_is_ignored {
        ", which nobody authenticates: it separates no subjects and selects no plan"
    } else {
        ""
    };
    output.line(format_args!("tenant          {}{ignored}", or(explanation.tenant.as_deref(), "none")));
    output.line(format_args!("plan            {}", or(Some(&explanation.plan), "none")));
    for ClaimUse { identity, claim, header, .. } in &explanation.claims {
        let shown = if identity == claim { claim.clone() } else { format!("{identity} from {claim}") };
        output.line(format_args!(
            "token           {}: the file states that {} is verified in front of Tidegate, which does not verify it",
            sanitize(&shown),
            sanitize(header)
        ));
    }
    if let [path, others @ ..] = explanation.path_readings.as_slice()
        && !others.is_empty()
    {
        output.line(format_args!("path            {}", sanitize(path)));
        for other in others {
            output.line(format_args!("                or, as other servers read it, {}", sanitize(other)));
        }
    }
    if let Some(line) = explanation.exempt {
        output.line(format_args!("exempt          by the entry in line {line}"));
    }
    if let Some(problem) = &explanation.problem {
        let refused = output.styled(Style::Bad, "refused");
        output.line(format_args!("{refused}         with {}: {}", problem.status(), sanitize(&problem.to_string())));
    }
    let (apply, others): (Vec<_>, Vec<_>) =
        explanation.rules.iter().partition(|rule| matches!(rule.status, RuleStatus::Applies(_)));
    match (apply.is_empty(), &explanation.problem) {
        (false, _) => print_title("Rules that apply", output),
        (true, None) => print_title("No rule applies: the request passes", output),
        (true, Some(_)) => {}
    }
    for rule in &apply {
        if let RuleStatus::Applies(effect) = &rule.status {
            print_rule(rule, effect, &explanation.claims, output);
        }
    }
    if !others.is_empty() {
        print_title("Rules that do not apply", output);
        let width = others.iter().map(|rule| rule.id.chars().count()).max().unwrap_or_default();
        for rule in others {
            output.line(format_args!("  {:width$}  {}", rule.id, reason(&rule.status)));
        }
    }
    if !explanation.timeline.points.is_empty() {
        print_title("Timeline of a new subject that repeats this request", output);
        print_timeline(&explanation.timeline.points, output);
    }
}

fn print_title(text: &str, output: &mut Output<'_>) {
    let text = output.styled(Style::Bold, text);
    output.line(format_args!("\n{text}"));
}

fn print_rule(rule: &RuleExplanation, effect: &RuleEffect, claims: &[ClaimUse], output: &mut Output<'_>) {
    let shadow = if rule.mode == RuleMode::Shadow { "  (shadow: counts and reports, but denies nothing)" } else { "" };
    let id = output.styled(Style::Good, &rule.id);
    output.line(format_args!("  {id}{shadow}"));
    let subject: Vec<_> = effect.subject.iter().map(|part| subject_part(part, claims)).collect();
    let subject =
        if subject.is_empty() { "nothing: one count for all requests".to_owned() } else { subject.join(", ") };
    output.line(format_args!("    counts by  {subject}"));
    output.line(format_args!("    subject    {}", effect.subject_hash));
    if effect.anonymous {
        output.line(format_args!("    anonymous  the subject is not authenticated"));
    }
    output.line(format_args!("    cost       {}", cost_text(effect)));
    for limit in &effect.limits {
        output.line(format_args!("    limit      {}", limit_text(limit)));
        if let Some(period) = &limit.period {
            output.line(format_args!("    period     {} to {}", period.begins, period.ends));
        }
        output.line(format_args!("    key        {}", output.styled(Style::Dim, &limit.key)));
    }
    let static_limit =
        effect.static_limit.as_ref().map(|limit| format!(", {limit}, for all subjects together")).unwrap_or_default();
    let default = if effect.ledger.is_some() && effect.is_default_policy { " (the default with a ledger)" } else { "" };
    output.line(format_args!("    on failure {}{static_limit}{default}", effect.on_failure.as_str()));
    if effect.on_overload != OnOverload::Policy {
        output.line(format_args!("    overloaded {}", effect.on_overload.as_str()));
    }
    if effect.error_format != ErrorFormat::default() {
        output.line(format_args!("    errors     {}", effect.error_format.as_str()));
    }
}

fn subject_part(part: &SubjectPart, claims: &[ClaimUse]) -> String {
    let name = sanitize(&part.name);
    let claim = claims.iter().find(|claim| claim.identity == part.name);
    if let (Some(value), Some(claim)) = (&part.value, claim) {
        return format!("{name} = {} (from {}, stated as verified in front)", sanitize(value), sanitize(&claim.claim));
    }
    match (&part.value, &part.kind) {
        (Some(value), Some(kind)) if *kind != part.name => {
            format!("{name} = {} (from {})", sanitize(value), sanitize(kind))
        }
        (Some(value), _) => format!("{name} = {}", sanitize(value)),
        (None, _) => format!("{name}, missing: all requests without it share one count"),
    }
}

/// The cost, and what corrects it after the response.
fn cost_text(effect: &RuleEffect) -> String {
    let cost = effect.cost;
    match (effect.usage, &effect.actual) {
        (Some(usage), _) => {
            format!("{cost}, reserved until the response says how many tokens it used ({})", usage.as_str())
        }
        (None, Some(header)) => format!("{cost}, corrected by the response header {}", sanitize(header)),
        (None, None) => cost.to_string(),
    }
}

fn limit_text(limit: &LimitExplanation) -> String {
    let name = if limit.name.is_empty() { String::new() } else { format!("{}: ", sanitize(&limit.name)) };
    let plan = if limit.plan.is_empty() { String::new() } else { format!(" (plan {})", sanitize(&limit.plan)) };
    format!("{name}{}{plan}", limit.text)
}

fn reason(status: &RuleStatus) -> String {
    match status {
        RuleStatus::Differs { field, wanted, found: Some(found) } => {
            format!("{field} is {}, the rule requires {}", sanitize(found), sanitize(wanted))
        }
        RuleStatus::Differs { field, wanted, found: None } => {
            format!("no {field}, the rule requires {}", sanitize(wanted))
        }
        RuleStatus::Exempt { line } => format!("exempt by the entry in line {line}"),
        RuleStatus::Disabled => "disabled".into(),
        _ => "applies".into(),
    }
}

fn print_timeline(points: &[TimelinePoint], output: &mut Output<'_>) {
    let at = |point: &TimelinePoint| {
        if point.at.is_zero() { "now".into() } else { format!("+{}", format_duration(point.at)) }
    };
    let width = points.iter().map(|point| at(point).len()).max().unwrap_or_default();
    for point in points {
        output.line(format_args!("  {:width$}  {}", at(point), point_text(point)));
    }
}

/// `20 pass, the 21st is denied by ride-request, retry after 100ms`.
fn point_text(point: &TimelinePoint) -> String {
    let passing = match point.allowed {
        0 => "none passes".to_owned(),
        1 => "1 passes".to_owned(),
        many => format!("{many} pass"),
    };
    let delay = match point.longest_delay {
        Duration::ZERO => String::new(),
        delay => format!(", the last with a delay of {}", format_duration(delay)),
    };
    let passing = match point.in_grace {
        0 => passing,
        grace => format!("{passing}, {grace} of them in grace"),
    };
    let Some(denied) = &point.denied else { return format!("{passing}{delay}, and more would") };
    let denial = match point.allowed {
        0 => format!("denied by {}", denied.rule),
        many => format!("the {} is denied by {}", ordinal(many + 1), denied.rule),
    };
    let retry = match denied.retry_after {
        _ if denied.until_release => "until one of them ends".to_owned(),
        Some(retry) => format!("retry after {}", format_duration(retry)),
        None => "never allowed".to_owned(),
    };
    format!("{passing}{delay}, {denial}, {retry}")
}

fn ordinal(number: u64) -> String {
    let suffix = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{number}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinals_have_the_correct_suffix() {
        let shown: Vec<_> = [1, 2, 3, 4, 11, 12, 13, 21, 101, 111, 112].map(ordinal).into();
        let expected = ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "101st", "111th", "112th"];
        assert_eq!(shown, expected);
    }
}
