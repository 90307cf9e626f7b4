//! A decision as text, with the HTTP response that a caller would get. Subjects are never shown.

use std::time::Duration;

use tidegate::http::Headers;
use tidegate::spi::{CheckResult, Role};
use tidegate::{Decision, Request, attributes};
use tidegate_rules::{RuleFile, sanitize};
use tidegate_server::command::{Output, Style, format_duration};

const COLUMNS: usize = 7;

/// A row of the table of checks.
type Row = [String; COLUMNS];

/// Groups equal consecutive decisions, so that they print as one line.
#[derive(Default)]
pub(super) struct DecisionRuns {
    count: u64,
    run_start: u64,
    outcome: String,
}

impl DecisionRuns {
    /// Adds a decision; prints the previous run if it differs.
    pub(super) fn add(&mut self, decision: &Decision, output: &mut Output<'_>) {
        let outcome = outcome(decision);
        if self.count == 0 || outcome != self.outcome {
            self.print(output);
            (self.run_start, self.outcome) = (self.count + 1, outcome);
        }
        self.count += 1;
    }

    /// Prints the last run, and the title of the last decision.
    pub(super) fn finish(&self, output: &mut Output<'_>) {
        if self.count > 0 {
            self.print(output);
            output.line("\nLast decision:");
        }
    }

    fn print(&self, output: &mut Output<'_>) {
        match self.count {
            0 => {}
            last if last == self.run_start => output.line(format_args!("{last:<12} {}", self.outcome)),
            last => output.line(format_args!("{:<12} {}", format!("{} to {last}", self.run_start), self.outcome)),
        }
    }
}

/// Prints a decision, its checks, and the HTTP response.
pub(super) fn print_decision(decision: &Decision, file: &RuleFile, request: &Request<'_>, output: &mut Output<'_>) {
    let style = if decision.is_allowed() { Style::Good } else { Style::Bad };
    let headline = output.styled(style, outcome(decision));
    output.line(format_args!("{headline}{}", timing(decision)));
    for rule in decision.shadow_would_reject() {
        output.line(format_args!("{rule} would deny it (shadow)"));
    }
    if !decision.checks().is_empty() {
        print_checks(decision, output);
    }
    print_response(decision, file, request, output);
}

/// `allowed`, or `denied by ride-request`.
fn outcome(decision: &Decision) -> String {
    if let Some(problem) = decision.problem() {
        return format!("refused: {}", sanitize(&problem.to_string()));
    }
    match (decision.is_allowed(), decision.rule()) {
        (true, _) if decision.is_in_grace() => "allowed in grace".to_owned(),
        (true, _) => "allowed".to_owned(),
        (false, Some(rule)) => format!("denied by {rule}"),
        (false, None) => "denied".to_owned(),
    }
}

/// When to retry, or how long to delay: `, retry after 1.97s`.
fn timing(decision: &Decision) -> String {
    if decision.problem().is_some() {
        return String::new();
    }
    if decision.checks().is_empty() {
        return ": no rule applies".to_owned();
    }
    if decision.is_permanent() {
        return ", never allowed: it costs more than the limit".to_owned();
    }
    if let Some(retry) = decision.retry_after() {
        return format!(", retry after {}", format_duration(retry));
    }
    match decision.delay() {
        Duration::ZERO => String::new(),
        delay => format!(", delay {}", format_duration(delay)),
    }
}

/// Prints a table of the checks.
fn print_checks(decision: &Decision, output: &mut Output<'_>) {
    let head = ["rule", "algorithm", "verdict", "cost", "remaining", "retry after", "reset after"].map(str::to_owned);
    let rows: Vec<Row> = [head].into_iter().chain(decision.checks().iter().map(row)).collect();
    let mut widths = [0; COLUMNS];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    output.line("");
    for (index, row) in rows.iter().enumerate() {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        let line = line.trim_end();
        let line = if index == 0 { output.styled(Style::Dim, line) } else { line.to_owned() };
        output.line(format_args!("  {line}"));
    }
}

fn row(check: &CheckResult) -> Row {
    let outcome = check.outcome();
    let verdict = match (outcome.admitted, check.role()) {
        (true, Role::Shadow) => "would allow",
        (false, Role::Shadow) => "would deny",
        (true, _) if outcome.in_grace => "in grace",
        (true, _) => "allowed",
        (false, _) => "denied",
    };
    let retry = match outcome.retry_after {
        _ if outcome.admitted => "-".to_owned(),
        Some(retry) => format_duration(retry),
        None => "never".to_owned(),
    };
    // A penalty has no amount.
    let remaining =
        if check.has_amount() { format!("{} of {}", outcome.remaining, outcome.limit) } else { "-".to_owned() };
    [
        check_name(check),
        check.algorithm().to_string(),
        verdict.to_owned(),
        check.cost().to_string(),
        remaining,
        retry,
        format_duration(outcome.reset_after),
    ]
}

/// The rule, followed by the name of the limit if it has one.
fn check_name(check: &CheckResult) -> String {
    let (dot, limit) = if check.limit_name().is_empty() { ("", "") } else { (".", check.limit_name()) };
    format!("{}{dot}{limit}", check.rule())
}

fn print_response(decision: &Decision, file: &RuleFile, request: &Request<'_>, output: &mut Output<'_>) {
    let policy = file.rules().header_policy();
    if decision.is_allowed() {
        let headers = policy.headers(decision);
        if !headers.is_empty() {
            output.line("\nResponse headers");
            print_headers(&headers, output);
        }
        return;
    }
    let message = decision.rule().and_then(|rule| file.rules().rule(rule)).and_then(|rule| rule.message.as_deref());
    let rejection = policy.reject(decision, message, request.attribute(attributes::ACCEPT_HEADER));
    output.line(format_args!("\nResponse {}", rejection.status));
    print_headers(&rejection.headers, output);
    output.line(format_args!("\n  {}", rejection.body));
}

fn print_headers(headers: &Headers, output: &mut Output<'_>) {
    for (name, value) in headers {
        output.line(format_args!("  {name}: {value}"));
    }
}
