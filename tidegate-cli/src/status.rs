//! `tidegate status`: the state of a running server.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_server::command::{Exit, Failure, MAX_RULE_DIFFERENCE, Output, Style, format_duration};

use crate::cli::StatusArgs;

pub(crate) fn run(arguments: &StatusArgs, output: &mut Output<'_>) -> Result<Exit, Failure> {
    let status = arguments.server.client()?.get("/v1/status")?;
    if !status["store"].is_object() {
        let message = "what answers is not the admin address of a Tidegate server; name that by --admin (its default port is 8082)";
        return Err(Failure::usage(message));
    }
    if arguments.json {
        output.json(&status);
    } else {
        print_status(&status, output);
    }
    Ok(Exit::from_success(is_well(&status)))
}

fn print_status(status: &Value, output: &mut Output<'_>) {
    let (doors, store, rules) = (&status["doors"], &status["store"], &status["rules"]);
    let mut line = |name: &str, value: String| output.line(format_args!("{name:<11}{value}"));
    line("version", text(&status["version"]));
    let scheme = if doors["tls"] == json!(true) { "https" } else { "http" };
    for (name, url) in [("http", format!("{scheme}://")), ("grpc", String::new()), ("gateway", format!("{scheme}://"))]
    {
        if let Some(address) = doors[name].as_str() {
            line(name, format!("{url}{address}"));
        }
    }
    line("admin", format!("http://{}", text(&doors["admin"])));
    let noun = if rules["rules"] == 1 { "rule" } else { "rules" };
    let digits: String = text(&rules["fingerprint"]).chars().take(8).collect();
    let source = text(&rules["source"]);
    line(
        "rules",
        format!("version {}, {} {noun}, from {source}, fingerprint {digits}", rules["version"], rules["rules"]),
    );
    line("namespace", text(&store["namespace"]));
    let instances = store["instances"].as_u64().map_or("not counted".to_owned(), |instances| instances.to_string());
    line("instances", instances);
    if let Some(lasts) = rule_difference(status) {
        let style = if lasts < MAX_RULE_DIFFERENCE { Style::Caution } else { Style::Bad };
        let (rule_sets, lasts) = (&store["rule_sets"], format_duration(lasts));
        let text = format!("{rule_sets} different sets of rules for {lasts}; the fingerprints of the instances differ");
        output.line(format_args!("{:<11}{}", "", output.styled(style, text)));
    }
    let is_reached = store["reached"] == json!(true);
    let reached = if is_reached { "answers" } else { "does not answer: each rule does what its on_failure says" };
    let style = if is_reached { Style::Good } else { Style::Bad };
    let reached = output.styled(style, reached);
    output.line(format_args!("{:<11}{}, {reached}", "store", text(&store["kind"])));
    for server in store["servers"].as_array().into_iter().flatten() {
        output.line(format_args!(
            "{:<11}{}: circuit breaker {}, {} in flight, {} waiting",
            "",
            text(&server["address"]),
            text(&server["breaker"]),
            server["in_flight"],
            server["waiting"]
        ));
    }
    if status["ledger"].is_object() {
        print_ledger(&status["ledger"], output);
    }
    for (part, problem) in problems(status) {
        let title = output.styled(Style::Bad, format_args!("{part} not reloaded, the old version stays:"));
        output.line(format_args!("{title} {problem}"));
    }
}

fn print_ledger(ledger: &Value, output: &mut Output<'_>) {
    let error = ledger["error"].as_str();
    let state = match (error, ledger["state"].as_str()) {
        (_, Some("closed")) => "does not fit this instance: rules with a ledger refuse all requests (503)".to_owned(),
        (Some(error), _) => format!("does not take entries ({error})"),
        (None, Some("rebuilding")) => "answers, quotas are being rebuilt from it".to_owned(),
        (None, Some("waiting")) => "answers, the store does not".to_owned(),
        _ => "answers".to_owned(),
    };
    let is_well = error.is_none() && ledger["state"] == json!("ready");
    let state = output.styled(if is_well { Style::Good } else { Style::Bad }, state);
    output.line(format_args!("{:<11}{}, {state}", "ledger", text(&ledger["url"])));
    if let Some(problem) = ledger["problem"].as_str() {
        let check = ledger["failed_check"].as_str().map_or(String::new(), |check| format!("failed check: {check}; "));
        let problem = output.styled(Style::Bad, format_args!("{check}{problem}"));
        output.line(format_args!("{:<11}{problem}", ""));
    }
    let lag = Duration::from_millis(ledger["lag_ms"].as_u64().unwrap_or_default());
    output.line(format_args!(
        "{:<11}{} waiting, lag {}, {} in the journal, {} partitions rebuilt",
        "",
        ledger["waiting"],
        format_duration(lag),
        ledger["journal"],
        ledger["rebuilds"]
    ));
    let unrecorded: Vec<String> = ledger["unrecorded"].as_array().into_iter().flatten().map(text).collect();
    if !unrecorded.is_empty() {
        let rules = output.styled(Style::Caution, unrecorded.join(", "));
        output.line(format_args!("{:<11}not recorded, without `ledger`: {rules}", ""));
    }
}

/// Whether an operator has nothing to do.
fn is_well(status: &Value) -> bool {
    status["degraded"] == json!(false)
        && problems(status).is_empty()
        && is_ledger_well(status)
        && rule_difference(status).is_none_or(|lasts| lasts < MAX_RULE_DIFFERENCE)
}

/// How long the instances have had different rules.
fn rule_difference(status: &Value) -> Option<Duration> {
    status["store"]["rules_differ_ms"].as_u64().map(Duration::from_millis)
}

/// Whether a server has no ledger, or one that is ready and takes entries.
fn is_ledger_well(status: &Value) -> bool {
    let ledger = &status["ledger"];
    !ledger.is_object() || ledger["reached"] == json!(true) && ledger["state"] == json!("ready")
}

/// The parts whose last change could not be loaded, and why.
fn problems(status: &Value) -> Vec<(&'static str, &str)> {
    let parts =
        [("rules", "rules"), ("envoy", "Envoy configuration"), ("tls", "certificates"), ("tokens", "admin tokens")];
    parts.into_iter().filter_map(|(name, title)| Some((title, status[name]["refused"].as_str()?))).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("unknown").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_rules_are_a_problem_after_ten_minutes() {
        let status = |lasts: Option<u64>| json!({ "degraded": false, "store": { "rules_differ_ms": lasts } });
        assert_eq!([None, Some(599_999), Some(600_000)].map(|lasts| is_well(&status(lasts))), [true, true, false]);
    }
}
