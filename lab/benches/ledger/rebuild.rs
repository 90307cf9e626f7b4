//! How long it takes to rebuild an emptied store from the ledger.

use std::sync::Arc;
use std::time::Duration;

use conformance::server::Server;
use tidegate::spi::{Journal, Outbox, PARTITIONS};
use tidegate::{Clock, MemoryStore, SystemClock};
use tidegate_ledger::{JournalFile, Ledger, LedgerService, ServiceOptions};

use super::Bench;
use super::common::{Contender, Table, best_of, patient_options};
use super::database::Database;
use super::posting::EntryMaker;

const BATCH: usize = 1_000;

pub(crate) fn measure(bench: &Bench, databases: &[Database]) -> Table {
    let tenants = bench.options.keys(100_000);
    let mut table =
        Table::new(format!("Rebuilding the quotas of {tenants} tenants"), ["what", "seconds", "µs a tenant"]);
    for database in databases {
        let ledger = bench.runtime.block_on(database.ledger());
        let maker = EntryMaker::new(tenants);
        for _ in 0..tenants / BATCH {
            bench.runtime.block_on(ledger.post(&maker.entries(BATCH, tenants))).unwrap();
        }
        let contender: Contender<'_, f64> = match database {
            Database::Postgres(_) => (
                "PostgreSQL into an emptied Redis",
                Box::new(|| bench.runtime.block_on(into_redis(&ledger, &bench.redis))),
            ),
            Database::Sqlite(_) => {
                ("SQLite into a new memory store", Box::new(|| bench.runtime.block_on(into_memory(&ledger, tenants))))
            }
        };
        for (name, seconds) in best_of(bench.rounds(), vec![contender], |round, best| round < best) {
            table.figures(name, [(seconds, 2), (seconds * 1e6 / tenants as f64, 1)]);
        }
    }
    table
}

async fn into_redis(ledger: &Ledger, redis: &Server) -> f64 {
    redis::cmd("FLUSHALL").arg("SYNC").exec(&mut redis.connection()).unwrap();
    seconds_of(ledger, redis.store_with(patient_options()).await, ServiceOptions::default()).await
}

async fn into_memory(ledger: &Ledger, tenants: usize) -> f64 {
    let directory = tempfile::tempdir().unwrap();
    let journal = Arc::new(JournalFile::open(directory.path().join("journal")).unwrap());
    let store = MemoryStore::new().with_max_keys(2 * tenants).with_journal(journal.clone() as Arc<dyn Journal>);
    seconds_of(ledger, store, ServiceOptions::default().with_journal(journal)).await
}

async fn seconds_of<O: Outbox + 'static>(ledger: &Ledger, store: O, options: ServiceOptions) -> f64 {
    let service = LedgerService::start(ledger.clone(), store, options).unwrap();
    let clock = SystemClock::new();
    let began_at = clock.now();
    let report = service.prepare().await.unwrap();
    // The service rebuilds partitions by itself, too, if it finds them first.
    assert!(report.rebuilt <= u64::from(PARTITIONS));
    let seconds = clock.now().since(began_at).as_secs_f64();
    assert_eq!(service.stats().rebuilds, u64::from(PARTITIONS));
    service.shutdown(Duration::from_secs(5)).await.unwrap();
    seconds
}
