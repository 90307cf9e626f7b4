//! `Options`: the command line of a benchmark, and what it prints.

use clap::Parser;
use lab::table::Table;
use serde_json::json;

/// `cargo bench -p lab --bench NAME -- [--quick] [--json] [--keys N]`
#[derive(Parser)]
pub(crate) struct Options {
    /// A few seconds instead of minutes: enough to see that it works, not to publish
    #[arg(long)]
    pub(crate) quick: bool,
    /// A JSON document instead of text
    #[arg(long)]
    pub(crate) json: bool,
    /// The number of keys
    #[arg(long)]
    keys: Option<usize>,
    /// Cargo adds this when it benchmarks; without it this is `cargo test --all-targets`, which is quick
    #[arg(long, hide = true)]
    bench: bool,
}

impl Options {
    pub(crate) fn from_command_line() -> Self {
        let options = Self::parse();
        Self { quick: options.quick || !options.bench, ..options }
    }

    /// The number of keys: as given, or `default`, or a hundredth of it with `--quick`.
    pub(crate) fn keys(&self, default: usize) -> usize {
        self.keys.unwrap_or(if self.quick { default / 100 } else { default })
    }

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
