//! `tidegate quota show`: a table of what was consumed.

use serde_json::{Value, json};
use tidegate_server::command::{Exit, Failure, Output};

use super::args::ShowArgs;
use super::{for_each_page, object, text, usage_table};

pub(super) fn run(arguments: &ShowArgs, output: &mut Output<'_>) -> Result<Exit, Failure> {
    let selection = &arguments.selection;
    let is_current = selection.from.is_none() && selection.to.is_none();
    let mut body = object([
        ("request", arguments.request.optional_json()?),
        ("rule", text(selection.rule.as_ref())),
        ("period", selection.period.map(|period| period.as_str().into())),
        ("from", text(selection.from.as_ref())),
        ("to", text(selection.to.as_ref())),
        ("current", is_current.then(|| true.into())),
    ]);
    let client = arguments.server.client()?;
    if arguments.csv {
        body["format"] = "csv".into();
        for_each_page(&client, "/v1/usage", "text/csv", &mut body, |page| {
            output.print(String::from_utf8_lossy(page));
            Ok(!output.is_closed())
        })?;
        return Ok(Exit::Success);
    }
    let mut rows: Vec<Value> = Vec::new();
    let unrecorded = loop {
        let mut answer = client.post("/v1/usage", &body)?;
        if let Some(Value::Array(page)) = answer.get_mut("usage").map(Value::take) {
            rows.extend(page);
        }
        match answer["after"].as_str() {
            Some(after) => body["after"] = after.into(),
            None => break answer["unrecorded"].take(),
        }
        output.progress(format_args!("{} rows", rows.len()));
    };
    output.progress("");
    if arguments.json {
        output.json(&json!({ "usage": rows, "unrecorded": unrecorded }));
        return Ok(Exit::Success);
    }
    if rows.is_empty() {
        output.line(if is_current { "nothing is used in the periods that run now" } else { "nothing was used" });
    } else {
        usage_table::print_usage(&rows, output);
    }
    let rules: Vec<&str> = unrecorded.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if !rules.is_empty() {
        output.warn(format_args!("without `ledger`, nothing is recorded of {}", rules.join(", ")));
    }
    Ok(Exit::Success)
}
