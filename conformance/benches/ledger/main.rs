//! The ledger: entries a second next to plain INSERTs, what `async` and `sync` cost a decision, how long a rebuild takes, and the size of
//! entries. Both databases write to the temporary directory, and a commit waits for its disk.

#![allow(clippy::unwrap_used, reason = "a panic is how a benchmark fails")]

#[path = "../common/mod.rs"]
mod common;
mod database;
mod decisions;
mod entry_size;
mod posting;
mod rebuild;

use common::{Options, report};
use conformance::server::{Kind, Server};
use database::Database;
use tokio::runtime::{Builder, Runtime};

/// What all tables use.
struct Bench {
    options: Options,
    runtime: Runtime,
    redis: Server,
}

fn main() {
    let bench = Bench {
        options: Options::from_command_line(),
        runtime: Builder::new_current_thread().enable_all().build().unwrap(),
        redis: Server::start(Kind::Redis),
    };
    // A database of its own for each table: the size of one must not slow down another.
    let tables = [
        posting::measure(&bench, &[Database::postgres(), Database::sqlite()]),
        decisions::measure(&bench, &Database::postgres()),
        rebuild::measure(&bench, &[Database::postgres(), Database::sqlite()]),
        entry_size::measure(&bench, &[Database::postgres(), Database::sqlite()]),
    ];
    report(&bench.options, &tables);
}
