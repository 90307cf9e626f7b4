//! The size of a million entries.

use super::Bench;
use super::common::Table;
use super::database::Database;
use super::posting::EntryMaker;

const ACCOUNTS: usize = 10_000;
const BATCH: usize = 1_000;

pub(crate) fn measure(bench: &Bench, databases: &[Database]) -> Table {
    let count = bench.options.keys(1_000_000);
    let columns = ["database", "bytes of an entry in the table", "in its indexes", "in all", "MB of everything"];
    let mut table = Table::new(format!("The size of {count} entries of {ACCOUNTS} accounts in one period"), columns);
    for database in databases {
        let maker = EntryMaker::new(ACCOUNTS);
        let [entries, indexes, others] = bench.runtime.block_on(async {
            let ledger = database.ledger().await;
            for _ in 0..count / BATCH {
                ledger.post(&maker.entries(BATCH, ACCOUNTS)).await.unwrap();
            }
            ledger.close().await;
            database.sizes().await
        });
        let total = [entries, indexes, others].into_iter().filter(|bytes| !bytes.is_nan()).sum::<f64>();
        let all = if entries.is_nan() { total } else { entries + indexes };
        let each = [entries, indexes, all].map(|bytes| (bytes / count as f64, 1));
        table.figures(database.name(), each.into_iter().chain([(total / 1e6, 1)]));
    }
    table
}
