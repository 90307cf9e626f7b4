//! The rule files in the pages are valid, and the schema has every field that the reference uses.

use std::collections::BTreeSet;

use serde_json::Value;
use tidegate_rule_tools::{parse_and_lint, test_schema};
use tidegate_rules::{RuleFile, schema};

const REFERENCE: &str = include_str!("../../docs/rules.md");
const HOW_TO: &str = include_str!("../../docs/write-rules.md");
const COMPARISON: &str = include_str!("../../docs/choosing-a-limit.md");
const TEST_REFERENCE: &str = include_str!("../../docs/testing-limits.md");

/// The YAML blocks of a page.
fn blocks(page: &str) -> Vec<&str> {
    let blocks = page.split("```yaml\n").skip(1);
    blocks.map(|rest| rest.split("```").next().unwrap_or(rest)).collect()
}

#[test]
fn every_rule_file_in_the_reference_is_valid() {
    assert!(blocks(REFERENCE).len() >= 9);
    for text in blocks(REFERENCE) {
        if let Err(report) = RuleFile::parse("docs/rules.md", text) {
            panic!("{report}\n\nin\n{text}");
        }
    }
}

#[test]
fn every_rule_file_in_the_other_pages_is_valid_and_gets_no_lints() {
    assert!(blocks(HOW_TO).len() >= 9);
    for text in [HOW_TO, COMPARISON].into_iter().flat_map(blocks) {
        match parse_and_lint("rules.yaml", text) {
            Ok(file) => assert!(file.report().problems().is_empty(), "{}\n\nin\n{text}", file.report()),
            Err(report) => panic!("{report}\n\nin\n{text}"),
        }
    }
}

/// Parts of files have no version, and test files no rules. The page of the command line shows the errors of a wrong file.
#[test]
fn every_complete_rule_file_in_any_page_is_valid() {
    let pages = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs")).expect("the pages");
    let mut files = 0;
    let pages = pages.map(|entry| entry.expect("an entry").path()).filter(|path| !path.ends_with("cli.md"));
    for path in pages.filter(|path| path.extension() == Some("md".as_ref())) {
        let page = std::fs::read_to_string(&path).expect("a page");
        let is_complete = |text: &&str| text.contains("version: 1\n") && text.contains("\nrules:");
        for text in blocks(&page).into_iter().filter(is_complete) {
            files += 1;
            if let Err(report) = RuleFile::parse("rules.yaml", text) {
                panic!("{report}\n\nin {}:\n{text}", path.display());
            }
        }
    }
    assert!(files >= 30, "{files}");
}

/// Converts YAML to JSON as an editor does: `off` is text.
fn json(text: &str) -> serde_json::Value {
    let options = serde_saphyr::options! { strict_booleans: true };
    serde_saphyr::from_str_with_options(text, options).expect("YAML")
}

#[test]
fn the_schema_accepts_the_files_of_the_pages_and_the_examples() {
    let schema = serde_json::from_str(&schema()).expect("JSON");
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    let examples = ["/../examples", "/../examples/exports", "/../examples/llm-gateway"]
        .map(|folder| [env!("CARGO_MANIFEST_DIR"), folder].concat());
    let entries = examples.into_iter().flat_map(|folder| std::fs::read_dir(folder).expect("examples"));
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let rules = paths.filter(|path| {
        path.extension().is_some_and(|yaml| yaml == "yaml") && !path.to_string_lossy().ends_with(".test.yaml")
    });
    let files: Vec<String> = rules.map(|path| std::fs::read_to_string(path).expect("a file")).collect();
    let documented = [REFERENCE, HOW_TO, COMPARISON].into_iter().flat_map(blocks);
    for text in documented.chain(files.iter().map(String::as_str)) {
        let errors: Vec<String> =
            validator.iter_errors(&json(text)).map(|error| format!("{}: {error}", error.instance_path())).collect();
        assert!(errors.is_empty(), "{errors:#?}\n\nin\n{text}");
    }
}

#[test]
fn the_schema_rejects_what_the_parser_rejects() {
    let schema = serde_json::from_str(&schema()).expect("JSON");
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    for text in [
        "rulez: []",
        "rules: [{ id: a, per: [], token_bucket: { capacty: 1, refill: 1/s } }]",
        "rules: [{ per: [], token_bucket: { capacity: 1, refill: 1/s } }]",
        "rules: [{ id: a, token_bucket: { capacity: 1, refill: 1/s } }]",
        "rules: [{ id: a, per: [], mode: of, token_bucket: { capacity: 1, refill: 1/s } }]",
        "rules: [{ id: a, per: [], token_bucket: { capacity: -1, refill: 1/s } }]",
        "rules: [{ id: a, per: [], quota: { amount: 1 } }]",
        "rules: [{ id: a, per: [], quota: { amount: 1, period: fortnight } }]",
        "rules: [{ id: a, per: [], quota: { amount: 1, period: day, zone: UTC } }]",
        "rules: [{ id: a, per: [], quota: { amount: 1, period: day, ledger: always } }]",
        "rules: [{ id: a, per: [], quota: { amount: 1, period: day, ledger: sync, keep_names: 1 } }]",
        "rules: [{ id: a, per: [], ledger: sync, quota: { amount: 1, period: day } }]",
        "rules: [{ id: a, per: [], cost: { usage: all }, token_bucket: { capacity: 1, refill: 1/s } }]",
        "rules: [{ id: a, per: [], concurrency: { max: 65536 } }]",
        "rules: [{ id: a, per: [ip], sliding_log: { limit: 1, window: 1s }, penalty: { after: 0, block: 1m, max: 1h } }]",
        "rules: [{ id: a, per: [ip], sliding_log: { limit: 1, window: 1s }, penalty: { after: 101, block: 1m, max: 1h } }]",
        "http: { x_ratelimit: seconds }",
        "identify: { trusted_hops: many }",
    ] {
        assert!(!validator.is_valid(&json(text)), "{text}");
        assert!(RuleFile::parse("rules.yaml", &format!("version: 1\n{text}")).is_err(), "{text}");
    }
}

/// The names of all fields in a schema.
fn fields(schema: &Value, names: &mut BTreeSet<String>) {
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        names.extend(properties.keys().cloned());
    }
    let inner: Vec<&Value> = match schema {
        Value::Object(object) => object.values().collect(),
        Value::Array(items) => items.iter().collect(),
        _ => Vec::new(),
    };
    for value in inner {
        fields(value, names);
    }
}

#[test]
fn every_field_of_the_schemas_is_on_its_page() {
    for (schema, page, name) in
        [(schema(), REFERENCE, "rules.md"), (test_schema(), TEST_REFERENCE, "testing-limits.md")]
    {
        let mut names = BTreeSet::new();
        fields(&serde_json::from_str(&schema).expect("JSON"), &mut names);
        assert!(names.len() > 20, "{names:?}");
        let is_missing =
            |field: &&String| !["{}:", "`{}`", "`{}:"].iter().any(|form| page.contains(&form.replace("{}", field)));
        let missing: Vec<_> = names.iter().filter(is_missing).collect();
        assert!(missing.is_empty(), "docs/{name} does not explain {missing:?}");
    }
}
