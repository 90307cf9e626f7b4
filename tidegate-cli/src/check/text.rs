//! A decision in words, and what a caller would get of it over HTTP. Subjects are not shown, only how they stand.

use tidegate::http::Headers;
use tidegate::spi::Role;
use tidegate::{CheckResult, Decision, Request, attributes};
use tidegate_rules::RuleFile;
use tidegate_server::command::{Output, Style, format_duration};

const COLUMNS: usize = 7;

/// A line of the table of checks.
type Row = [String; COLUMNS];

/// Decisions in a row that are the same: from which to which, and what.
#[derive(Default)]
pub(super) struct Runs {
    asked: u64,
    first: u64,
    what: String,
}

impl Runs {
    /// Notes a decision, and shows those before it if they were different.
    pub(super) fn add(&mut self, decision: &Decision, output: &mut Output<'_>) {
        let what = what(decision);
        if self.asked == 0 || what != self.what {
            self.show(output);
            (self.first, self.what) = (self.asked + 1, what);
        }
        self.asked += 1;
    }

    /// Shows what is left to show.
    pub(super) fn end(&self, output: &mut Output<'_>) {
        if self.asked > 0 {
            self.show(output);
            output.line("\nThe last one:");
        }
    }

    fn show(&self, output: &mut Output<'_>) {
        match self.asked {
            0 => {}
            last if last == self.first => output.line(format_args!("{last:<12} {}", self.what)),
            last => output.line(format_args!("{:<12} {}", format!("{} to {last}", self.first), self.what)),
        }
    }
}

pub(super) fn print(decision: &Decision, file: &RuleFile, request: &Request<'_>, output: &mut Output<'_>) {
    let style = if decision.is_allowed() { Style::Good } else { Style::Bad };
    let headline = output.styled(style, what(decision));
    output.line(format_args!("{headline}{}", when(decision)));
    for rule in decision.shadow_would_reject() {
        output.line(format_args!("{rule} would deny it, but is in shadow"));
    }
    if !decision.checks().is_empty() {
        print_checks(decision, output);
    }
    print_http(decision, file, request, output);
}

/// `allowed`, or `denied by ride-request`.
fn what(decision: &Decision) -> String {
    match (decision.is_allowed(), decision.rule()) {
        (true, _) => "allowed".to_owned(),
        (false, Some(rule)) => format!("denied by {rule}"),
        (false, None) => "denied".to_owned(),
    }
}

fn when(decision: &Decision) -> String {
    if decision.checks().is_empty() {
        return ": no rule applies".to_owned();
    }
    if decision.is_permanent() {
        return " for good: it costs more than the limit ever allows, and no waiting helps".to_owned();
    }
    match decision.retry_after() {
        Some(retry) => format!(", retry after {}", format_duration(retry)),
        None if !decision.delay().is_zero() => format!(", to be held for {}", format_duration(decision.delay())),
        None => String::new(),
    }
}

/// How every check stands, as a table.
fn print_checks(decision: &Decision, output: &mut Output<'_>) {
    let head = ["rule", "algorithm", "says", "cost", "remaining", "retry after", "reset after"].map(str::to_owned);
    let rows: Vec<Row> = [head].into_iter().chain(decision.checks().iter().map(row)).collect();
    let mut widest = [0; COLUMNS];
    for row in &rows {
        for (widest, cell) in widest.iter_mut().zip(row) {
            *widest = cell.chars().count().max(*widest);
        }
    }
    output.line("");
    for (place, row) in rows.iter().enumerate() {
        let cells = row.iter().zip(widest).map(|(cell, widest)| format!("{cell:widest$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        let line = line.trim_end();
        let line = if place == 0 { output.styled(Style::Dim, line) } else { line.to_owned() };
        output.line(format_args!("  {line}"));
    }
}

fn row(check: &CheckResult) -> Row {
    let outcome = check.outcome();
    let says = match (outcome.admitted, check.role()) {
        (true, Role::Shadow) => "would allow",
        (false, Role::Shadow) => "would deny",
        (true, _) => "allowed",
        (false, _) => "denied",
    };
    let retry = match outcome.retry_after {
        _ if outcome.admitted => "-".to_owned(),
        Some(retry) => format_duration(retry),
        None => "never".to_owned(),
    };
    [
        name(check),
        check.algorithm().to_string(),
        says.to_owned(),
        check.cost().to_string(),
        format!("{} of {}", outcome.remaining, outcome.limit),
        retry,
        format_duration(outcome.reset_after),
    ]
}

/// The rule, and the limit within it if that has a name.
fn name(check: &CheckResult) -> String {
    let (dot, limit) = if check.limit_name().is_empty() { ("", "") } else { (".", check.limit_name()) };
    format!("{}{dot}{limit}", check.rule())
}

fn print_http(decision: &Decision, file: &RuleFile, request: &Request<'_>, output: &mut Output<'_>) {
    let contract = file.rules().header_policy();
    if decision.is_allowed() {
        let headers = contract.headers(decision);
        if !headers.is_empty() {
            output.line("\nThe answer carries");
            print_fields(&headers, output);
        }
        return;
    }
    let message = decision.rule().and_then(|rule| file.rules().rule(rule)).and_then(|rule| rule.message());
    let answer = contract.reject(decision, message, request.attribute(attributes::ACCEPT_HEADER));
    output.line(format_args!("\nThe answer is {}", answer.status));
    print_fields(&answer.headers, output);
    output.line(format_args!("\n  {}", answer.body));
}

fn print_fields(headers: &Headers, output: &mut Output<'_>) {
    for (name, value) in headers {
        output.line(format_args!("  {name}: {value}"));
    }
}
