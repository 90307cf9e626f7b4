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
    let (is_found, answer) = arguments.server.client()?.post_if_needed("/v1/subjects/show", &body(arguments)?)?;
    if arguments.json {
        output.json(&answer);
    } else if !is_found {
        print_not_found(&answer, output);
    } else {
        print_headline(&answer, output);
        print_buckets(&answer["buckets"], output);
        print_rest(&answer, output);
    }
    let is_allowed = match &answer["next"] {
        _ if !is_found => false,
        Value::Null => longest_denial(&answer, |_| true).is_none(),
        next => next["allowed"] == json!(true),
    };
    Ok(Exit::from_success(is_allowed))
}

fn reset(arguments: &ResetArgs, output: &mut Output<'_>) -> Result<Exit, Failure> {
    let ResetArgs { reason, author, subject } = arguments;
    let mut body = body(subject)?;
    if let Some(reason) = reason {
        body["reason"] = reason.as_str().into();
        body["author"] = author.as_deref().into();
    }
    let (is_done, answer) = subject.server.client()?.post_if_needed("/v1/subjects/reset", &body)?;
    if subject.json {
        output.json(&answer);
    } else {
        if is_done {
            print_reset(&answer, output);
        } else {
            let nothing = output.styled(Style::Bad, "nothing was reset");
            output.line(nothing);
            if answer["error"] != json!("nothing_to_reset") {
                print_not_found(&answer, output);
            }
        }
        print_unchanged(&answer, output);
        print_rest(&answer, output);
    }
    Ok(Exit::from_success(is_done))
}

/// Digits of the log that do not lead to one subject.
fn print_not_found(answer: &Value, output: &mut Output<'_>) {
    output.line(answer["message"].as_str().unwrap_or_default());
    for one in answer["matches"].as_array().into_iter().flatten() {
        let (hash, rules) = (one["hash"].as_str().unwrap_or_default(), texts(&one["rules"]));
        output.line(format_args!("  {hash}  {}", rules.join(", ")));
    }
}

fn print_reset(answer: &Value, output: &mut Output<'_>) {
    let rules = texts(&answer["reset"]);
    output.line(format_args!("reset under {}: {}", count(rules.len(), "rule"), rules.join(", ")));
    if answer["repaired"] == json!(false) {
        output.warn("quotas with a ledger are reset there and not yet in the store: tidegate quota reconcile --apply");
    } else {
        output.line("Every instance knows it within a second.");
    }
    if answer["next"]["allowed"] == json!(false) {
        let headline = next_text(&answer["next"]);
        let headline = output.styled(Style::Bad, format_args!("still {headline}"));
        output.line(format_args!("its next request is {headline}"));
    }
}

/// What a reset found and did not change.
fn print_unchanged(answer: &Value, output: &mut Output<'_>) {
    for (name, state) in
        [("full", "was full, nothing to reset"), ("overflowed", "counted with other new subjects, not reset")]
    {
        let rules = texts(&answer[name]);
        if !rules.is_empty() {
            output.line(format_args!("{}: {state}", rules.join(", ")));
        }
    }
}

fn body(arguments: &SubjectArgs) -> Result<Value, Failure> {
    if let Some(hash) = &arguments.hash {
        if arguments.request.optional_json()?.is_some() {
            return Err(Failure::usage(
                "--hash stands in place of a request: leave the other flags of the subject out",
            ));
        }
        return Ok(json!({ "hash": hash, "rule": arguments.rule }));
    }
    Ok(json!({ "request": arguments.request.json()?, "rule": arguments.rule }))
}

/// What the next request would get. Without a path or an action, which rules it matches is not known: then whether one of its limits
/// denies.
fn print_headline(answer: &Value, output: &mut Output<'_>) {
    let next = &answer["next"];
    if next.is_object() {
        let is_allowed = next["allowed"] == json!(true);
        let headline = output.styled(if is_allowed { Style::Good } else { Style::Bad }, next_text(next));
        output.line(format_args!("its next request is {headline}"));
        if let Some((rule, state)) =
            longest_denial(answer, |bucket| bucket["matches"] != json!(true)).filter(|_| is_allowed)
        {
            output.line(format_args!("{rule} {state}, and does not match this request"));
        }
        return;
    }
    let headline = match longest_denial(answer, |_| true) {
        Some((rule, state)) => output.styled(Style::Bad, format_args!("{rule} {state}")),
        None if answer["buckets"].as_array().is_none_or(Vec::is_empty) => return,
        None => output.styled(Style::Good, "no limit of its own denies"),
    };
    output.line(format_args!("{headline}. What its next request gets depends on the request: add --path or --action"));
}

/// `allowed`, or `denied by RULE, retry after 3s`.
fn next_text(next: &Value) -> String {
    let retry = next["retry_after_ms"].as_u64().map(|millis| format!(", retry after {}", millis_text(millis)));
    match (next["allowed"] == json!(true), next["rule"].as_str()) {
        (true, None) => "allowed: no rule matches this request".to_owned(),
        (true, Some(_)) => "allowed".to_owned(),
        (false, rule) => format!("denied by {}{}", rule.unwrap_or("a rule"), retry.unwrap_or_default()),
    }
}

/// The rule that denies for the longest time, of the enforced buckets that are meant, and its state.
fn longest_denial(answer: &Value, is_meant: impl Fn(&Value) -> bool) -> Option<(String, String)> {
    let buckets = answer["buckets"].as_array().into_iter().flatten();
    let denying = buckets.filter(|bucket| bucket["allowed"] == json!(false) && bucket["shadow"] != json!(true));
    // One that denies always has no time.
    let longest = denying.filter(|bucket| is_meant(bucket));
    let longest = longest.max_by_key(|bucket| bucket["retry_after_ms"].as_u64().unwrap_or(u64::MAX))?;
    Some((bucket_name(longest), state(longest)))
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
    let remarks = [("shadow", " (shadow)"), ("overflowed", " (shared by new subjects)")];
    let remarks = remarks.into_iter().filter(|(name, _)| bucket[*name] == json!(true)).map(|(_, remark)| remark);
    // A penalty has no amount.
    let remaining = match bucket["limit"].as_u64() {
        Some(limit) => format!("{} of {limit}{}", number("remaining"), reserved(bucket)),
        None => "-".to_owned(),
    };
    [
        bucket_name(bucket),
        text("algorithm").to_owned(),
        remaining,
        state(bucket) + &remarks.collect::<String>(),
        millis_text(number("reset_after_ms")),
    ]
}

fn bucket_name(bucket: &Value) -> String {
    let text = |name: &str| bucket[name].as_str().unwrap_or_default();
    let dot = if text("name").is_empty() { "" } else { "." };
    format!("{}{dot}{}", text("rule"), text("name"))
}

fn state(bucket: &Value) -> String {
    match (bucket["allowed"] == json!(true), bucket["retry_after_ms"].as_u64()) {
        (true, _) => "open".to_owned(),
        // Its retry is a guess: a slot is free when a request ends.
        (false, Some(_)) if bucket["algorithm"] == json!("concurrency") => "full".to_owned(),
        (false, Some(millis)) => format!("denies for {}", millis_text(millis)),
        (false, None) => "denies always".to_owned(),
    }
}

/// What open reservations hold of a bucket.
fn reserved(bucket: &Value) -> String {
    bucket["reserved"]["units"].as_u64().map_or_else(String::new, |units| format!(" ({units} reserved)"))
}

/// The tenants of the subject, and the rules without a bucket of it.
fn print_rest(answer: &Value, output: &mut Output<'_>) {
    let tenants = &answer["tenants"];
    if tenants.is_object() {
        let rules = texts(&tenants["rules"]).join(", ");
        let names = match (tenants["looked_up"].as_u64().unwrap_or_default(), tenants["complete"] == json!(true)) {
            (0, true) => "neither the file nor the ledger names one".to_owned(),
            (looked_up, is_complete) => {
                let of = if is_complete { "the".to_owned() } else { format!("{looked_up} of the") };
                format!("of {of} tenants that the file or the ledger names, with state: {}", tenants["with_state"])
            }
        };
        output.line(format_args!("\n{rules}: counted separately for each tenant: add --tenant; {names}"));
    }
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
