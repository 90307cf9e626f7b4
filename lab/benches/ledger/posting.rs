//! Entries a second into the ledger, next to plain INSERTs of the same rows in the same round.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use conformance::suite::decide_all;
use tidegate::limits::{Period, Periods};
use tidegate::rules::LedgerMode;
use tidegate::spi::{AccountKey, Check, EntryId, EntryKind, Gate, OutboxEntry, Plan, Subject};
use tidegate::{Clock, Limit, Rule, SystemClock, Timestamp};
use tidegate_ledger::{Ledger, LedgerService, ServiceOptions};
use tidegate_redis::RedisStore;

use super::Bench;
use super::common::{Contender, Table, best_of, patient_options, subjects};
use super::database::Database;

/// Entries of one transaction, as many as a flush reads from one outbox.
const BATCH: usize = 1_000;
/// The midnight after which the entries are.
const START: u64 = 1_800_057_600_000;

/// Makes entries with ids that no other entry has.
pub(crate) struct EntryMaker {
    accounts: Vec<AccountKey>,
    next: AtomicU64,
}

impl EntryMaker {
    /// For this many accounts of the quota of one rule.
    pub(crate) fn new(accounts: usize) -> Self {
        let gate = gate();
        let account = |subject: Subject| AccountKey::from_key(Check::new(&gate, subject, 1).key());
        Self { accounts: subjects(accounts).into_iter().map(account).collect(), next: AtomicU64::new(0) }
    }

    /// `count` entries, of the first `accounts` accounts in turn.
    pub(crate) fn entries(&self, count: usize, accounts: usize) -> Vec<OutboxEntry> {
        let first = self.next.fetch_add(count as u64, Ordering::Relaxed);
        let entry = |number: u64| {
            let AccountKey { partition, stem, subject } = self.accounts[number as usize % accounts].clone();
            // A thousand in each second.
            let at = Timestamp::from_micros(1000 * (START + number));
            OutboxEntry {
                id: EntryId { generation: 7, partition, millis: START + number, sequence: 0 },
                kind: EntryKind::Consume,
                at,
                stem,
                subject,
                period: START / 86_400_000,
                amount: 1,
                late_amount: 0,
                held: 0,
                owner: 0,
                expires_at: Timestamp::default(),
                hard_limit: 1_000_000,
            }
        };
        (first..first + count as u64).map(entry).collect()
    }
}

/// A store whose outboxes are filled and flushed, by a service that does nothing in between.
struct RedisOutboxes {
    store: RedisStore,
    service: LedgerService<RedisStore>,
    subjects: Vec<Subject>,
}

impl RedisOutboxes {
    async fn start(bench: &Bench, ledger: Ledger) -> Self {
        redis::cmd("FLUSHALL").arg("SYNC").exec(&mut bench.redis.connection()).unwrap();
        let store = bench.redis.store_with(patient_options()).await;
        let hour = Duration::from_hours(1);
        let options = ServiceOptions::default().with_flush_interval(hour).with_sweep_interval(hour);
        let service = LedgerService::start(ledger, store.clone(), options).unwrap();
        service.prepare().await.unwrap();
        Self { store, service, subjects: subjects(10_000) }
    }

    /// The seconds that a flush of `count` entries takes.
    async fn flush(&self, count: usize) -> f64 {
        let (clock, gate, posted) = (SystemClock::new(), gate(), self.service.stats().entries_posted);
        for first in (0..count).step_by(BATCH) {
            let subjects =
                self.subjects.iter().cycle().skip(first % self.subjects.len()).take(BATCH.min(count - first));
            let plans: Vec<Plan<'_>> =
                subjects.map(|subject| Plan::new([Check::new(&gate, *subject, 1)]).unwrap()).collect();
            for verdict in decide_all(&self.store, &plans).await {
                assert_eq!(verdict.unwrap().granted(), 1);
            }
        }
        let began_at = clock.now();
        self.service.flush_all().await.unwrap();
        let seconds = clock.now().since(began_at).as_secs_f64();
        assert_eq!(self.service.stats().entries_posted - posted, count as u64);
        seconds
    }
}

fn gate() -> Gate {
    let limit = Limit::quota(1_000_000, Periods::utc(Period::Day)).unwrap();
    Gate::new(Rule::new("units", limit).with_per(["subject"]).with_ledger(LedgerMode::Async), "", limit)
}

pub(crate) fn measure(bench: &Bench, databases: &[Database]) -> Table {
    let count = bench.options.keys(20_000);
    let title = format!("Entries into the ledger, {BATCH} in a transaction, next to plain INSERTs of as many rows");
    let mut table = Table::new(title, ["what", "entries a second", "to plain INSERTs"]);
    for database in databases {
        let maker = EntryMaker::new(10_000);
        let ledger = bench.runtime.block_on(database.ledger());
        let mut plain = bench.runtime.block_on(database.plain_table());
        // Entries a second of a round, which `write` writes batch by batch.
        let round = |accounts: usize, write: &mut dyn FnMut(&[OutboxEntry])| {
            let batches: Vec<_> = (0..count / BATCH).map(|_| maker.entries(BATCH, accounts)).collect();
            let clock = SystemClock::new();
            let began_at = clock.now();
            for batch in &batches {
                write(batch);
            }
            count as f64 / clock.now().since(began_at).as_secs_f64()
        };
        let post = |accounts: usize| {
            let (round, ledger) = (&round, &ledger);
            move || {
                round(accounts, &mut |batch| {
                    let posted = bench.runtime.block_on(ledger.post(batch)).unwrap();
                    assert_eq!(posted.inserted, BATCH as u64);
                })
            }
        };
        let insert = || round(BATCH, &mut |batch| bench.runtime.block_on(plain.insert(batch)));
        let outboxes = bench.runtime.block_on(RedisOutboxes::start(bench, ledger.clone()));
        let flush = || count as f64 / bench.runtime.block_on(outboxes.flush(count));
        let contenders: Vec<Contender<'_, f64>> = vec![
            ("plain INSERTs", Box::new(insert)),
            ("ledger, each entry another account", Box::new(post(10_000))),
            ("ledger, 100 accounts", Box::new(post(100))),
            ("ledger, 1 account", Box::new(post(1))),
            ("ledger, flushed from the outboxes of Redis", Box::new(flush)),
        ];
        let best = best_of(bench.rounds(), contenders, |round, best| round > best);
        let plain = best[0].1;
        for (name, entries) in best {
            table.figures(&format!("{}: {name}", database.name()), [(entries, 0), (entries / plain, 2)]);
        }
    }
    table
}
