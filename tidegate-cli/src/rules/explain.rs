//! `tidegate rules explain`: an explanation as a page for people. It adds nothing to what the library found out.
//!
//! The person at the terminal has typed the subjects, so this page shows them; nothing else of Tidegate does.

mod explained;

use std::time::Duration;

use tidegate::{RuleMode, Secret};
use tidegate_rules::{
    Explanation, LimitExplanation, RuleEffect, RuleExplanation, RuleStatus, SubjectPart, TimelinePoint, sanitize,
};

use crate::cli::ExplainArgs;
use explained::Explained;
use tidegate_server::command::{Exit, Failure, Output, Style, format_duration};

pub(super) fn run(arguments: &ExplainArgs, output: &mut Output<'_>) -> Result<Exit, Failure> {
    let attributes = arguments.request.attributes()?;
    let secret = arguments.secret.secret()?.unwrap_or_else(Secret::public);
    let file = tidegate_server::command::load_rule_file(&arguments.file)??;
    let explanation = file.explain(&attributes.request(), &secret);
    if arguments.json {
        output.json(&Explained::new(&explanation));
    } else {
        print(&explanation, output);
    }
    Ok(Exit::Success)
}

fn print(explanation: &Explanation, output: &mut Output<'_>) {
    let or = |text: Option<&str>, none: &str| text.filter(|text| !text.is_empty()).map_or(none.to_owned(), sanitize);
    output.line(format_args!("client address  {}", or(explanation.client_ip.as_deref(), "not known")));
    output.line(format_args!("tenant          {}", or(explanation.tenant.as_deref(), "none")));
    output.line(format_args!("plan            {}", or(Some(&explanation.plan), "none")));
    if let Some(line) = explanation.exempt {
        output.line(format_args!("exempt          by the entry in line {line}"));
    }
    let (apply, others): (Vec<_>, Vec<_>) =
        explanation.rules.iter().partition(|rule| matches!(rule.status, RuleStatus::Applies(_)));
    title(if apply.is_empty() { "No rule applies: the request passes" } else { "Rules that apply" }, output);
    for rule in &apply {
        if let RuleStatus::Applies(applied) = &rule.status {
            print_applied(rule, applied, output);
        }
    }
    if !others.is_empty() {
        title("Rules that do not apply", output);
        let widest = others.iter().map(|rule| rule.id.chars().count()).max().unwrap_or_default();
        for rule in others {
            output.line(format_args!("  {:widest$}  {}", rule.id, reason(&rule.status, explanation.exempt)));
        }
    }
    if !explanation.timeline.points.is_empty() {
        title("If somebody new sent this request again and again", output);
        print_moments(&explanation.timeline.points, output);
    }
}

fn title(text: &str, output: &mut Output<'_>) {
    let text = output.styled(Style::Bold, text);
    output.line(format_args!("\n{text}"));
}

fn print_applied(rule: &RuleExplanation, applied: &RuleEffect, output: &mut Output<'_>) {
    let shadow =
        if rule.mode == RuleMode::Shadow { "  (shadow: it counts and reports, and refuses nothing)" } else { "" };
    let id = output.styled(Style::Good, &rule.id);
    output.line(format_args!("  {id}{shadow}"));
    let subject: Vec<_> = applied.subject.iter().map(part).collect();
    let subject = if subject.is_empty() { "nothing: everybody shares it".to_owned() } else { subject.join(", ") };
    output.line(format_args!("    counts by  {subject}"));
    output.line(format_args!("    subject    {}", applied.subject_hash));
    if applied.anonymous {
        output.line(format_args!("    anonymous  nobody vouches for this subject"));
    }
    output.line(format_args!("    cost       {}", applied.cost));
    for limit in &applied.limits {
        output.line(format_args!("    limit      {}", words(limit)));
        output.line(format_args!("    key        {}", output.styled(Style::Dim, &limit.key)));
    }
    let cap = applied.emergency.as_ref().map(|cap| format!(", {cap}, of everybody together")).unwrap_or_default();
    output.line(format_args!("    on failure {}{cap}", applied.on_failure.as_str()));
}

fn part(part: &SubjectPart) -> String {
    let name = sanitize(&part.name);
    match (&part.value, &part.kind) {
        (Some(value), Some(kind)) if *kind != part.name => {
            format!("{name} = {} (from {})", sanitize(value), sanitize(kind))
        }
        (Some(value), _) => format!("{name} = {}", sanitize(value)),
        (None, _) => format!("{name}, which the request lacks: all who lack it are counted as one"),
    }
}

fn words(limit: &LimitExplanation) -> String {
    let name = if limit.name.is_empty() { String::new() } else { format!("{}: ", sanitize(&limit.name)) };
    let plan = if limit.plan.is_empty() { String::new() } else { format!(" (plan {})", sanitize(&limit.plan)) };
    format!("{name}{}{plan}", limit.text)
}

fn reason(verdict: &RuleStatus, exempt: Option<usize>) -> String {
    match verdict {
        RuleStatus::Differs { field, wanted, found: Some(found) } => {
            format!("{field} is {}, the rule wants {}", sanitize(found), sanitize(wanted))
        }
        RuleStatus::Differs { field, wanted, found: None } => {
            format!("there is no {field}, the rule wants {}", sanitize(wanted))
        }
        RuleStatus::Exempt => {
            exempt.map_or_else(|| "exempt".into(), |line| format!("lifted by the exemption in line {line}"))
        }
        RuleStatus::Disabled => "disabled".into(),
        _ => "applies".into(),
    }
}

fn print_moments(moments: &[TimelinePoint], output: &mut Output<'_>) {
    let at = |moment: &TimelinePoint| {
        if moment.at.is_zero() { "now".into() } else { format!("+{}", format_duration(moment.at)) }
    };
    let widest = moments.iter().map(|moment| at(moment).len()).max().unwrap_or_default();
    for moment in moments {
        output.line(format_args!("  {:widest$}  {}", at(moment), happens(moment)));
    }
}

/// `20 pass, the 21st is refused by ride-request, retry after 100ms`.
fn happens(moment: &TimelinePoint) -> String {
    let passing = match moment.allowed {
        0 => "none passes".to_owned(),
        1 => "1 passes".to_owned(),
        many => format!("{many} pass"),
    };
    let held = match moment.longest_delay {
        Duration::ZERO => String::new(),
        delay => format!(", the last held for {}", format_duration(delay)),
    };
    let Some(denied) = &moment.denied else { return format!("{passing}{held}, and more would") };
    let refused = match moment.allowed {
        0 => format!("{} refuses it", denied.rule),
        many => format!("the {} is refused by {}", ordinal(many + 1), denied.rule),
    };
    let retry = match denied.retry_after {
        Some(retry) => format!("retry after {}", format_duration(retry)),
        None => "for good: no waiting helps".to_owned(),
    };
    format!("{passing}{held}, {refused}, {retry}")
}

fn ordinal(number: u64) -> String {
    let ending = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_endings() {
        let shown: Vec<_> = [1, 2, 3, 4, 11, 12, 13, 21, 101, 111, 112].map(ordinal).into();
        let expected = ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "101st", "111th", "112th"];
        assert_eq!(shown, expected);
    }
}
