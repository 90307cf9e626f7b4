//! `tidegate status`: the state of a running server.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_server::command::{Exit, Failure, Output, Style, format_duration};

use crate::cli::StatusArgs;

pub(crate) fn run(arguments: &StatusArgs, output: &mut Output<'_>) -> Result<Exit, Failure> {
    let status = arguments.server.client()?.get("/v1/status")?;
    if arguments.json {
        output.json(&status);
    } else {
        print_status(&status, output);
    }
    let is_well = status["degraded"] == json!(false) && problems(&status).is_empty() && is_ledger_well(&status);
    Ok(Exit::from_success(is_well))
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
    line("rules", format!("version {}, {} {noun}, from {}", rules["version"], rules["rules"], text(&rules["source"])));
    let instances = store["instances"].as_u64().map_or("not counted".to_owned(), |instances| instances.to_string());
    line("instances", instances);
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
        (Some(error), _) => format!("does not take entries ({error})"),
        (None, Some("rebuilding")) => "answers, quotas are being rebuilt from it".to_owned(),
        (None, Some("waiting")) => "answers, the store does not".to_owned(),
        _ => "answers".to_owned(),
    };
    let is_well = error.is_none() && ledger["state"] == json!("ready");
    let state = output.styled(if is_well { Style::Good } else { Style::Bad }, state);
    output.line(format_args!("{:<11}{}, {state}", "ledger", text(&ledger["url"])));
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
