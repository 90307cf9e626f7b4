//! `tidegate subject show` and `tidegate subject reset`: the limits of one customer, in a running server.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_server::command::{Exit, Failure, Output, Style, count, format_duration};

use crate::cli::{ResetArgs, SubjectArgs, SubjectCommand};

/// The columns of the table of buckets.
const HEADINGS: [&str; 5] = ["bucket", "algorithm", "left", "state", "full again after"];

pub(crate) fn run(command: &SubjectCommand, output: &mut Output<'_>) -> Result<Exit, Failure> {
    match command {
        SubjectCommand::Show(arguments) => show(arguments, output),
        SubjectCommand::Reset(arguments) => reset(arguments, output),
    }
}

fn show(arguments: &SubjectArgs, output: &mut Output<'_>) -> Result<Exit, Failure> {
    let answer = arguments.server.client()?.post("/v1/subjects/show", &body(arguments)?)?;
    if arguments.json {
        output.json(&answer);
    } else {
        print_next(&answer["next"], output);
        print_buckets(&answer["buckets"], output);
        print_rest(&answer, output);
    }
    Ok(Exit::from_success(answer["next"]["allowed"] == json!(true)))
}

fn reset(arguments: &ResetArgs, output: &mut Output<'_>) -> Result<Exit, Failure> {
    let ResetArgs { reason, author, subject } = arguments;
    let mut body = body(subject)?;
    if let Some(reason) = reason {
        body["reason"] = reason.as_str().into();
        body["author"] = author.as_deref().into();
    }
    let answer = subject.server.client()?.post("/v1/subjects/reset", &body)?;
    if subject.json {
        output.json(&answer);
    } else {
        let rules = texts(&answer["reset"]);
        output.line(format_args!("reset under {}: {}", count(rules.len(), "rule"), rules.join(", ")));
        if answer["repaired"] == json!(false) {
            output.warn(
                "quotas with a ledger are reset there and not yet in the store: tidegate quota reconcile --apply",
            );
        } else {
            output.line("Every instance admits it within a second.");
        }
        print_rest(&answer, output);
    }
    Ok(Exit::Success)
}

fn body(arguments: &SubjectArgs) -> Result<Value, Failure> {
    Ok(json!({ "request": arguments.request.json()?, "rule": arguments.rule }))
}

/// What the next request would get.
fn print_next(next: &Value, output: &mut Output<'_>) {
    let is_allowed = next["allowed"] == json!(true);
    let style = if is_allowed { Style::Good } else { Style::Bad };
    let outcome = match (is_allowed, next["rule"].as_str()) {
        (true, None) => "allowed: no rule matches this request".to_owned(),
        (true, Some(_)) => "allowed".to_owned(),
        (false, rule) => format!("denied by {}", rule.unwrap_or("a rule")),
    };
    let retry = next["retry_after_ms"].as_u64().map(|millis| format!(", retry after {}", millis_text(millis)));
    let outcome = output.styled(style, outcome);
    output.line(format_args!("its next request is {outcome}{}", retry.unwrap_or_default()));
}

fn print_buckets(buckets: &Value, output: &mut Output<'_>) {
    let rows: Vec<[String; 5]> = buckets.as_array().into_iter().flatten().map(row).collect();
    if rows.is_empty() {
        return;
    }
    let rows: Vec<[String; 5]> = [HEADINGS.map(str::to_owned)].into_iter().chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths = [width(0), width(1), width(2), width(3), width(4)];
    output.line("");
    for (index, row) in rows.iter().enumerate() {
        let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        let line = cells.join("  ");
        let line = line.trim_end();
        let line = if index == 0 { output.styled(Style::Dim, line) } else { line.to_owned() };
        output.line(format_args!("  {line}"));
    }
}

fn row(bucket: &Value) -> [String; 5] {
    let text = |name: &str| bucket[name].as_str().unwrap_or_default();
    let number = |name: &str| bucket[name].as_u64().unwrap_or_default();
    let dot = if text("name").is_empty() { "" } else { "." };
    let state = match (bucket["allowed"] == json!(true), bucket["retry_after_ms"].as_u64()) {
        (true, _) => "open".to_owned(),
        // Its retry is a guess: a slot is free when a request ends.
        (false, Some(_)) if text("algorithm") == "concurrency" => "full".to_owned(),
        (false, Some(millis)) => format!("denies for {}", millis_text(millis)),
        (false, None) => "denies always".to_owned(),
    };
    // A penalty has no amount.
    let remaining = match bucket["limit"].as_u64() {
        Some(limit) => format!("{} of {limit}{}", number("remaining"), reserved(bucket)),
        None => "-".to_owned(),
    };
    [
        format!("{}{dot}{}", text("rule"), text("name")),
        text("algorithm").to_owned(),
        remaining,
        if bucket["shadow"] == json!(true) { format!("{state} (shadow)") } else { state },
        millis_text(number("reset_after_ms")),
    ]
}

/// What open reservations hold of a bucket.
fn reserved(bucket: &Value) -> String {
    bucket["reserved"]["units"].as_u64().map_or_else(String::new, |units| format!(" ({units} reserved)"))
}

/// The rules without a bucket of this subject.
fn print_rest(answer: &Value, output: &mut Output<'_>) {
    let mut lines = Vec::new();
    for rule in answer["incomplete"].as_array().into_iter().flatten() {
        let id = rule["rule"].as_str().unwrap_or_default();
        lines.push(format!("{id}: needs {} of the request", texts(&rule["missing"]).join(" and ")));
    }
    lines.extend(texts(&answer["shared"]).into_iter().map(|id| format!("{id}: all senders share its limit")));
    if !lines.is_empty() {
        output.line("\nNo bucket of its own under");
    }
    for line in lines {
        output.line(format_args!("  {line}"));
    }
}

fn texts(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

fn millis_text(millis: u64) -> String {
    format_duration(Duration::from_millis(millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_penalty_has_no_amount_and_a_full_concurrency_limit_no_time() {
        let bucket = |algorithm: &str, limit: Option<u64>| {
            row(&json!({
                "rule": "r", "name": "n", "algorithm": algorithm, "allowed": false, "shadow": false,
                "limit": limit, "remaining": limit.map(|_| 0), "retry_after_ms": 60_000, "reset_after_ms": 90_000,
            }))
        };
        assert_eq!(bucket("penalty", None), ["r.n", "penalty", "-", "denies for 1m", "1m30s"]);
        assert_eq!(bucket("concurrency", Some(3)), ["r.n", "concurrency", "0 of 3", "full", "1m30s"]);
        assert_eq!(bucket("sliding_log", Some(3)), ["r.n", "sliding_log", "0 of 3", "denies for 1m", "1m30s"]);
    }

    #[test]
    fn what_is_reserved_stands_beside_what_remains() {
        let reserved = json!({ "reservations": 2, "units": 300 });
        let bucket = json!({
            "rule": "r", "name": "", "algorithm": "quota", "allowed": true, "limit": 1000, "remaining": 500,
            "reset_after_ms": 1000, "reserved": reserved,
        });
        assert_eq!(row(&bucket), ["r", "quota", "500 of 1000 (300 reserved)", "open", "1s"]);
    }
}
