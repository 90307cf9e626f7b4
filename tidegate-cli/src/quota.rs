//! `tidegate quota`: what the ledger of a running server has of quotas.

mod args;
mod show;
mod usage_table;

pub(crate) use args::{EXAMPLES, QuotaCommand};

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use serde_json::{Map, Value, json};
use tidegate_server::command::{Exit, Failure, Output, Style, count};

use self::args::{CorrectArgs, ExportArgs, ReconcileArgs, RollupArgs};
use crate::admin_client::AdminClient;

pub(crate) fn run(command: &QuotaCommand, output: &mut Output<'_>) -> Result<Exit, Failure> {
    match command {
        QuotaCommand::Show(arguments) => show::run(arguments, output),
        QuotaCommand::Reconcile(arguments) => reconcile(arguments, output),
        QuotaCommand::Correct(arguments) => correct(arguments, output),
        QuotaCommand::Export(arguments) => export(arguments, output),
        QuotaCommand::Rollup(arguments) => rollup(arguments, output),
    }
}

/// An object of the values that are there.
fn object<const N: usize>(fields: [(&str, Option<Value>); N]) -> Value {
    let fields = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(fields.collect::<Map<_, _>>())
}

fn text(value: Option<&String>) -> Option<Value> {
    value.map(|value| value.as_str().into())
}

fn reconcile(arguments: &ReconcileArgs, output: &mut Output<'_>) -> Result<Exit, Failure> {
    let client = arguments.server.client()?;
    let path = if arguments.apply { "/v1/usage/reconcile" } else { "/v1/usage/compare" };
    let mut answer = client.post(path, &json!({ "apply": arguments.apply }))?;
    while answer["running"] == json!(true) {
        let progress = |name: &str| answer["progress"][name].as_u64().unwrap_or_default();
        let (compared, partitions) = (progress("partitions_compared"), progress("partitions"));
        output.progress(format_args!("comparing store and ledger: {compared} of {partitions} partitions"));
        // The server answers at the end, or after a second.
        answer = client.get("/v1/usage/reconcile")?;
    }
    output.progress("");
    if let Some(error) = answer["error"].as_str() {
        return Err(Failure::Server(format!("the reconcile ended early: {error}")));
    }
    if arguments.json {
        output.json(&answer);
    } else {
        print_reconcile(&answer, output);
    }
    Ok(Exit::from_success(answer["unrepaired"] == json!(0) && answer["busy"] == json!(0)))
}

fn print_reconcile(answer: &Value, output: &mut Output<'_>) {
    let number = |name: &str| answer[name].as_u64().unwrap_or_default();
    let rows = answer["list"].as_array().map(Vec::as_slice).unwrap_or_default();
    usage_table::print_differences(rows, output);
    let (differences, lost, repaired) = (number("differences"), number("lost_partitions"), number("repaired"));
    if differences > rows.len() as u64 {
        output.line(format_args!("… and {} more", differences - rows.len() as u64));
    }
    let accounts = count(number("accounts") as usize, "account");
    let found = match (differences, lost) {
        (0, 0) => output.styled(Style::Good, "store and ledger agree"),
        (_, 0) => output.styled(Style::Bad, count(differences as usize, "difference")),
        _ => {
            let lost = count(lost as usize, "partition");
            output.styled(
                Style::Bad,
                format_args!("{}, {lost} lost by the store", count(differences as usize, "difference")),
            )
        }
    };
    output.line(format_args!("{found}, {accounts} compared"));
    if repaired > 0 {
        let repaired = output.styled(Style::Good, format_args!("{repaired} repaired"));
        output.line(repaired);
    }
    if number("unrepaired") > 0 && answer["apply"] != json!(true) {
        output.line("Set the store to what the ledger has with --apply");
    }
    if number("busy") > 0 {
        output.line(format_args!(
            "{} under constant use, not compared or repaired: repeat it",
            count(number("busy") as usize, "account")
        ));
    }
}

fn correct(arguments: &CorrectArgs, output: &mut Output<'_>) -> Result<Exit, Failure> {
    let (rule, limit) = split_limit(&arguments.rule);
    let Some(request) = arguments.request.optional_json()? else {
        return Err(Failure::usage("whose quota? Add --tenant, or what else identifies the subject, such as --header"));
    };
    let body = object([
        ("request", Some(request)),
        ("rule", Some(rule.into())),
        ("limit_name", limit.map(Into::into)),
        ("amount", Some(arguments.amount.into())),
        ("reason", Some(arguments.reason.as_str().into())),
        ("author", Some(arguments.author.as_str().into())),
        ("period", text(arguments.period.as_ref())),
        ("idempotency_key", text(arguments.idempotency_key.as_ref())),
        ("create", arguments.create.then(|| true.into())),
    ]);
    let answer = arguments.server.client()?.post("/v1/usage/corrections", &body)?;
    if arguments.json {
        output.json(&answer);
        return Ok(Exit::Success);
    }
    let used = &answer["usage"];
    let before = if answer["repeated"] == json!(true) { " before, under this key, and not again" } else { "" };
    output.line(format_args!(
        "corrected by {:+}{before}: {} of {} used in {}",
        arguments.amount,
        used["used"],
        used["limit"],
        used["period"].as_str().unwrap_or_default()
    ));
    if answer["repaired"] != json!(true) {
        output.warn("the ledger has the correction; the store takes it over as soon as it answers. Compare them later: tidegate quota reconcile");
    }
    Ok(Exit::Success)
}

/// The rule and the limit of `RULE.LIMIT`. Ids of rules have no dots.
fn split_limit(rule: &str) -> (&str, Option<&str>) {
    rule.split_once('.').map_or((rule, None), |(rule, limit)| (rule, Some(limit)))
}

fn export(arguments: &ExportArgs, output: &mut Output<'_>) -> Result<Exit, Failure> {
    let ExportArgs { rule, from, to, csv, jsonl: _, out, request, server } = arguments;
    let (format, accept) = if *csv { ("csv", "text/csv") } else { ("jsonl", "application/x-ndjson") };
    let mut body = object([
        ("request", request.optional_json()?),
        ("rule", text(rule.as_ref())),
        ("from", text(from.as_ref())),
        ("to", text(to.as_ref())),
        ("format", Some(format.into())),
    ]);
    let client = server.client()?;
    let failed = |error: std::io::Error| {
        Failure::usage(format!("--out {}: {error}", out.as_deref().unwrap_or(Path::new("")).display()))
    };
    let mut file = match out {
        Some(path) => Some(OpenOptions::new().write(true).create_new(true).open(path).map_err(failed)?),
        None => None,
    };
    let mut lines = 0;
    for_each_page(&client, "/v1/usage/entries", accept, &mut body, |page| {
        let page = String::from_utf8_lossy(page);
        lines += page.lines().count();
        match &mut file {
            Some(file) => file.write_all(page.as_bytes()).map_err(failed)?,
            None => output.print(page),
        }
        output.progress(count(lines, "line"));
        Ok(!output.is_closed())
    })?;
    output.progress("");
    if let Some(file) = file {
        file.sync_all().map_err(failed)?;
        // The first line of CSV has the names of the columns.
        let entries = lines - usize::from(*csv && lines > 0);
        output.info(format_args!("{entries} {} written", if entries == 1 { "entry" } else { "entries" }));
    }
    Ok(Exit::Success)
}

/// Calls `each` with every page, until it returns false.
fn for_each_page(
    client: &AdminClient,
    path: &str,
    accept: &'static str,
    body: &mut Value,
    mut each: impl FnMut(&[u8]) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    loop {
        let page = client.post_for_text(path, accept, body)?;
        let goes_on = each(&page.text)?;
        match page.after {
            Some(after) if goes_on => body["after"] = after.into(),
            _ => return Ok(()),
        }
    }
}

fn rollup(arguments: &RollupArgs, output: &mut Output<'_>) -> Result<Exit, Failure> {
    let answer = arguments.server.client()?.post("/v1/usage/rollup", &json!({ "before": arguments.before }))?;
    if arguments.json {
        output.json(&answer);
    } else {
        let entries = answer["entries"].as_u64().unwrap_or_default();
        output.line(format_args!("{entries} entries before {} are summed up and deleted", arguments.before));
    }
    Ok(Exit::Success)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_named_behind_its_rule() {
        assert_eq!(split_limit("exports"), ("exports", None));
        assert_eq!(split_limit("exports.day"), ("exports", Some("day")));
    }

    #[test]
    fn only_given_values_are_sent() {
        let body = object([("rule", Some("r".into())), ("from", None)]);
        assert_eq!(body, json!({ "rule": "r" }));
    }
}
