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

impl Bench {
    /// A round takes seconds, so fewer of them are needed than elsewhere.
    fn rounds(&self) -> usize {
        self.options.rounds().min(3)
    }
}

fn main() {
    let bench = Bench {
        options: Options::from_command_line(),
        runtime: Builder::new_current_thread().enable_all().build().unwrap(),
        redis: Server::start(Kind::Redis),
    };
    // A database of its own for each table: the size of one must not slow down another.
    eprintln!("1 of 4: entries a second");
    let posting = posting::measure(&bench, &[Database::postgres(), Database::sqlite()]);
    eprintln!("2 of 4: decisions");
    let decisions = decisions::measure(&bench, &Database::postgres());
    eprintln!("3 of 4: rebuilding");
    let rebuild = rebuild::measure(&bench, &[Database::postgres(), Database::sqlite()]);
    eprintln!("4 of 4: the size of entries");
    let entry_size = entry_size::measure(&bench, &[Database::postgres(), Database::sqlite()]);
    let tables = [posting, decisions, rebuild, entry_size];
    report(&bench.options, &tables);
}
