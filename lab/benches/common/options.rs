//! `Options`: the command line of a benchmark, and what it prints.

use std::str::FromStr;

use lab::table::Table;
use serde_json::json;

/// `cargo bench -p lab --bench NAME -- [--quick] [--json] [--keys N]`
pub(crate) struct Options {
    /// A few seconds instead of minutes: enough to see that it works, not to publish.
    pub(crate) quick: bool,
    /// A JSON document instead of text.
    pub(crate) json: bool,
    keys: Option<usize>,
}

impl Options {
    pub(crate) fn from_command_line() -> Self {
        let words: Vec<String> = std::env::args().skip(1).collect();
        let has = |name: &str| words.iter().any(|word| word == name);
        let value = |name: &str| words.iter().position(|word| word == name).and_then(|at| words.get(at + 1));
        Self {
            // Cargo adds `--bench` when it benchmarks; without it this is `cargo test --all-targets`.
            quick: has("--quick") || !has("--bench"),
            json: has("--json"),
            keys: value("--keys").map(|text| usize::from_str(text).expect("--keys takes a number")),
        }
    }

    /// The number of keys: as given, or `default`, or a hundredth of it with `--quick`.
    pub(crate) fn keys(&self, default: usize) -> usize {
        self.keys.unwrap_or(if self.quick { default / 100 } else { default })
    }

    /// The number of rounds.
    pub(crate) fn rounds(&self) -> usize {
        if self.quick { 2 } else { 7 }
    }
}

/// Prints the tables as text, or as JSON with `--json`.
pub(crate) fn report(options: &Options, tables: &[Table]) {
    if options.json {
        let tables: Vec<_> = tables.iter().map(Table::json).collect();
        println!("{:#}", json!({ "quick": options.quick, "tables": tables }));
        return;
    }
    for table in tables {
        println!("\n{}\n\n{}", table.title(), table.lines().join("\n"));
    }
}
