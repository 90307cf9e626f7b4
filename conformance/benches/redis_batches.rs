//! Processor time of a Redis and a Valkey server for one decision of plans that are decided in batches, next to a lean script for
//! each request and to bare `INCR`, all in pipelines of the same size.

#![allow(clippy::unwrap_used, reason = "a panic is how a benchmark fails")]

mod common;

use common::{BatchBench, Cell, Contender, KeyChoice, Options, Table, best_of, report};
use conformance::server::{KINDS, Kind, Server};

/// Plans in a batch, and commands in a pipeline.
const BATCH_SIZE: usize = 64;

/// Keys of the uniform choice.
const KEYS: usize = 100_000;

type Named<'r> = (&'static str, Contender<'r, f64>);

fn main() {
    let options = Options::from_command_line();
    let tables: Vec<Table> = KINDS.into_iter().map(|kind| measure(kind, &options)).collect();
    report(&options, &tables);
}

fn measure(kind: Kind, options: &Options) -> Table {
    let server = Server::start(kind);
    let bench = BatchBench::new(&server, options.keys(KEYS), BATCH_SIZE, if options.quick { 5_000 } else { 50_000 });
    let contenders: Vec<Named<'_>> = vec![
        ("hot key: INCR", Box::new(|| bench.incr(KeyChoice::Hot))),
        ("hot key: lean GCRA script for each request", Box::new(|| bench.lean_script(KeyChoice::Hot, 1))),
        ("hot key: batches of 64", Box::new(|| bench.batches(KeyChoice::Hot))),
        ("uniform keys: INCR", Box::new(|| bench.incr(KeyChoice::Uniform))),
        ("uniform keys: lean GCRA script for each request", Box::new(|| bench.lean_script(KeyChoice::Uniform, 1))),
        ("uniform keys: batches of 64", Box::new(|| bench.batches(KeyChoice::Uniform))),
        (
            "tenant, client and rule: three scripts for each request",
            Box::new(|| bench.lean_script(KeyChoice::Uniform, 3)),
        ),
        ("tenant, client and rule: batches of 64", Box::new(|| bench.batches(KeyChoice::TenantClientRule))),
    ];
    let (names, mut runs): (Vec<_>, Vec<_>) = contenders.into_iter().unzip();
    let best = best_of(options.rounds(), &mut runs, |round, best| round < best);
    let scripts = [1, 1, 1, 4, 4, 4, 6, 6];
    let mut table =
        Table::new(format!("{kind:?}: CPU time of the server for one decision"), ["what", "µs CPU", "to the scripts"]);
    for (index, name) in names.into_iter().enumerate() {
        let ratio = best[index] / best[scripts[index]];
        table.row([Cell::Text(name.to_owned()), Cell::Number(best[index], 2), Cell::Number(ratio, 3)]);
    }
    table
}
