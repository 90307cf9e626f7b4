//! A memory store that can be lost and paused, and an SQLite ledger that can be locked.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use sqlx::{Connection, SqliteConnection};
use tempfile::TempDir;
use tidegate::limits::{Period, Periods};
use tidegate::rules::LedgerMode;
use tidegate::spi::algorithm::quota::QuotaState;
use tidegate::spi::{
    AccountKey, EntryId, EntryKind, GateState, Outbox, OutboxBatch, OutboxEntry, OutboxPosition, PARTITIONS, Store,
    UnconfirmedEntry,
};
use tidegate::{
    Limit, Limiter, ManualClock, MemoryStore, Request, Rule, RuleSet, StoreError, StoreErrorKind, Timestamp,
};
use tokio::sync::Semaphore;

use super::super::{LedgerService, ServiceOptions, timer};
use crate::journal::JournalFile;
use crate::{Ledger, LedgerUrl};

pub(super) const NOON: Timestamp = Timestamp::from_micros(1_800_014_400_000_000);

/// Long enough that nothing happens by itself in a test.
pub(super) const NEVER: Duration = Duration::from_hours(1);

/// A memory store that can be lost, paused and made to fail.
#[derive(Clone)]
pub(super) struct TestStore(Arc<TestStoreState>);

struct TestStoreState {
    store: RwLock<Arc<MemoryStore>>,
    clock: ManualClock,
    journal: Arc<JournalFile>,
    fails: AtomicBool,
    failed_calls: Semaphore,
    /// A read returns once it has a permit. Its result is from before.
    reads: Semaphore,
    is_paused: AtomicBool,
    paused_reads: Semaphore,
    /// Consume a unit after each read of this many, as a busy instance would.
    is_busy: AtomicBool,
    /// The number of the server.
    server: AtomicU64,
    /// Partitions whose generation was discarded. A memory store cannot do that: it is replaced when they are rebuilt.
    discarded: Mutex<BTreeSet<u16>>,
}

pub(super) struct Fixture {
    pub(super) directory: TempDir,
    pub(super) clock: ManualClock,
    pub(super) journal: Arc<JournalFile>,
    pub(super) store: TestStore,
    pub(super) ledger: Ledger,
}

/// Keeps everybody else from writing to the ledger.
pub(super) struct HeldWriteLock(SqliteConnection);

pub(super) fn options() -> ServiceOptions {
    ServiceOptions::default().with_budget(Duration::from_mins(1)).with_flush_interval(NEVER).with_sweep_interval(NEVER)
}

/// Everything that the outbox of a partition contains.
pub(super) fn all_of(partition: u16, generation: u64) -> UnconfirmedEntry {
    UnconfirmedEntry { partition, generation, id: None }
}

/// One entry.
pub(super) fn only(id: EntryId) -> UnconfirmedEntry {
    UnconfirmedEntry { partition: id.partition, generation: id.generation, id: Some(id) }
}

/// Waits for a condition.
pub(super) async fn until<F: Future<Output = bool>>(mut condition: impl FnMut() -> F) {
    let wait = async {
        while !condition().await {
            timer::sleep(Duration::from_millis(1)).await;
        }
    };
    timer::timeout(Duration::from_mins(1), wait).await.expect("the condition comes true within a minute");
}

impl Fixture {
    /// With every partition rebuilt.
    pub(super) async fn new() -> Self {
        let fixture = Self::unprepared().await;
        for partition in 0..PARTITIONS {
            fixture.store.current().rebuild_partition(partition, 7, &[]).await.unwrap();
        }
        fixture
    }

    pub(super) async fn unprepared() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let ledger = open_ledger(&directory).await;
        let clock = ManualClock::starting_at(NOON);
        let journal = Arc::new(JournalFile::open(directory.path().join("journal")).unwrap());
        let store = TestStore::new(clock.clone(), journal.clone());
        Self { directory, clock, journal, store, ledger }
    }

    /// The same after the process ended: only the files are left.
    pub(super) async fn restart(self) -> Self {
        let Self { directory, clock, journal, store, ledger } = self;
        drop(store);
        ledger.close().await;
        until(|| async { Arc::strong_count(&journal) == 1 }).await;
        drop(journal);
        let ledger = open_ledger(&directory).await;
        let journal = Arc::new(JournalFile::open(directory.path().join("journal")).unwrap());
        let store = TestStore::new(clock.clone(), journal.clone());
        Self { directory, clock, journal, store, ledger }
    }

    pub(super) fn options(&self) -> ServiceOptions {
        options().with_journal(self.journal.clone()).with_clock(Arc::new(self.clock.clone()))
    }

    pub(super) fn start(&self) -> LedgerService<TestStore> {
        self.start_with(self.options())
    }

    pub(super) fn start_with(&self, options: ServiceOptions) -> LedgerService<TestStore> {
        LedgerService::start(self.ledger.clone(), self.store.clone(), options).unwrap()
    }

    pub(super) async fn lock_ledger(&self) -> HeldWriteLock {
        let path = ledger_path(&self.directory);
        let mut connection = SqliteConnection::connect(&format!("sqlite:{}", path.display())).await.unwrap();
        sqlx::query("BEGIN IMMEDIATE").execute(&mut connection).await.unwrap();
        HeldWriteLock(connection)
    }

    /// What the ledger says that this tenant has used.
    pub(super) async fn ledger_used(&self, tenant: &str) -> u64 {
        let states = self.ledger.gate_states_of(&[account(tenant).await]).await.unwrap();
        states[0].state.used + states[0].state.debt
    }
}

impl HeldWriteLock {
    pub(super) async fn release(mut self) {
        sqlx::query("ROLLBACK").execute(&mut self.0).await.unwrap();
        self.0.close().await.unwrap();
    }
}

fn ledger_path(directory: &TempDir) -> PathBuf {
    directory.path().join("ledger.db")
}

async fn open_ledger(directory: &TempDir) -> Ledger {
    Ledger::open(&LedgerUrl::Sqlite(ledger_path(directory))).await.unwrap()
}

fn rules() -> RuleSet {
    let limit = Limit::quota(1_000, Periods::utc(Period::Day)).unwrap();
    RuleSet::new([Rule::new("units", limit).with_per(["tenant"]).with_ledger(LedgerMode::Async)]).unwrap()
}

/// The account of a tenant, found by what a store records.
pub(super) async fn account(tenant: &str) -> AccountKey {
    let directory = tempfile::tempdir().unwrap();
    let journal = Arc::new(JournalFile::open(directory.path().join("journal")).unwrap());
    let store = TestStore::new(ManualClock::starting_at(NOON), journal);
    for partition in 0..PARTITIONS {
        store.current().rebuild_partition(partition, 7, &[]).await.unwrap();
    }
    store.consume(tenant, 1).await;
    let partition = store.take_written_partitions()[0];
    store.current().read_outbox(partition, 1).await.unwrap().entries[0].account()
}

/// An entry of a tenant, admitted without the store.
pub(super) async fn journaled(tenant: &str, amount: i64) -> OutboxEntry {
    let account = account(tenant).await;
    OutboxEntry {
        id: EntryId { generation: 0, partition: account.partition, millis: 0, sequence: 0 },
        kind: EntryKind::Consume,
        at: NOON,
        stem: account.stem,
        subject: account.subject,
        period: Periods::utc(Period::Day).bounds_at(NOON).index,
        amount,
        late_amount: 0,
        held: 0,
        owner: 0,
        expires_at: Timestamp::default(),
        hard_limit: 1_000,
    }
}

impl TestStore {
    fn new(clock: ManualClock, journal: Arc<JournalFile>) -> Self {
        let store = MemoryStore::new().with_clock(clock.clone()).with_journal(journal.clone());
        Self(Arc::new(TestStoreState {
            store: RwLock::new(Arc::new(store)),
            clock,
            journal,
            fails: AtomicBool::new(false),
            failed_calls: Semaphore::new(0),
            reads: Semaphore::new(0),
            is_paused: AtomicBool::new(false),
            paused_reads: Semaphore::new(0),
            is_busy: AtomicBool::new(false),
            server: AtomicU64::new(1),
            discarded: Mutex::default(),
        }))
    }

    pub(super) fn current(&self) -> Arc<MemoryStore> {
        self.0.store.read().unwrap().clone()
    }

    /// Loses everything, as a server that restarts without its data.
    pub(super) fn lose(&self) {
        let store = MemoryStore::new().with_clock(self.0.clock.clone()).with_journal(self.0.journal.clone());
        *self.0.store.write().unwrap() = Arc::new(store);
    }

    /// A replica takes over that has the generation, but nothing of what was written since.
    pub(super) async fn go_back(&self, generation: u64) {
        self.lose();
        for partition in 0..PARTITIONS {
            self.current().rebuild_partition(partition, generation, &[]).await.unwrap();
        }
        self.fail_over();
    }

    /// A replica takes over that has everything.
    pub(super) fn fail_over(&self) {
        self.0.server.fetch_add(1, Ordering::SeqCst);
    }

    /// The last entry in the outbox of a partition.
    pub(super) async fn last_entry(&self, partition: u16) -> EntryId {
        self.current().read_outbox(partition, 1_000).await.unwrap().entries.last().unwrap().id
    }

    pub(super) async fn consume(&self, tenant: &str, cost: u64) {
        let request = Request::new("export").with_attribute("tenant", tenant).with_cost(cost);
        let limiter = Limiter::new(rules(), self.current());
        assert!(limiter.check(&request).await.unwrap().is_allowed());
    }

    /// What the store says that this tenant has left.
    pub(super) async fn used(&self, tenant: &str) -> u64 {
        let request = Request::new("export").with_attribute("tenant", tenant);
        let decision = Limiter::new(rules(), self.current()).peek(&request).await.unwrap();
        1_000 - decision.remaining().unwrap()
    }

    pub(super) async fn generation(&self, partition: u16) -> Option<u64> {
        self.current().read_outbox(partition, 1).await.unwrap().generation
    }

    pub(super) async fn is_outbox_empty(&self, partition: u16) -> bool {
        self.current().read_outbox(partition, 1).await.unwrap().entries.is_empty()
    }

    pub(super) fn set_failing(&self, fails: bool) {
        self.0.fails.store(fails, Ordering::SeqCst);
    }

    /// Waits until a call has failed.
    pub(super) async fn wait_for_failed_call(&self) {
        self.0.failed_calls.acquire().await.unwrap().forget();
    }

    pub(super) fn set_busy(&self, is_busy: bool) {
        self.0.is_busy.store(is_busy, Ordering::SeqCst);
    }

    /// From now on, reads return only after [`let_reads_return`](Self::let_reads_return).
    pub(super) fn pause_reads(&self) {
        self.0.is_paused.store(true, Ordering::SeqCst);
    }

    /// Waits until a read has its result but has not returned.
    pub(super) async fn wait_for_paused_read(&self) {
        self.0.paused_reads.acquire().await.unwrap().forget();
    }

    pub(super) fn let_reads_return(&self) {
        self.0.is_paused.store(false, Ordering::SeqCst);
        self.0.reads.add_permits(1_000);
    }

    fn check(&self) -> Result<Arc<MemoryStore>, StoreError> {
        if self.0.fails.load(Ordering::SeqCst) {
            self.0.failed_calls.add_permits(1);
            return Err(StoreError::new(StoreErrorKind::Unavailable, "the store is down"));
        }
        Ok(self.current())
    }
}

impl Outbox for TestStore {
    async fn read_outbox(&self, partition: u16, max: usize) -> Result<OutboxBatch, StoreError> {
        let mut batch = self.check()?.read_outbox(partition, max).await?;
        // Others are read at the same time, as on a real server.
        tokio::task::yield_now().await;
        batch.server = self.0.server.load(Ordering::SeqCst);
        if self.0.discarded.lock().unwrap().contains(&partition) {
            batch.generation = None;
        }
        if self.0.is_paused.load(Ordering::SeqCst) {
            self.0.paused_reads.add_permits(1);
            self.0.reads.acquire().await.unwrap().forget();
        }
        if self.0.is_busy.load(Ordering::SeqCst) {
            self.consume("acme", 1).await;
        }
        Ok(batch)
    }

    async fn acknowledge(&self, partition: u16, ids: &[EntryId]) -> Result<(), StoreError> {
        self.check()?.acknowledge(partition, ids).await
    }

    fn take_written_partitions(&self) -> Vec<u16> {
        self.current().take_written_partitions()
    }

    async fn read_states(
        &self,
        partition: u16,
        keys: &[AccountKey],
    ) -> Result<Option<(OutboxPosition, Vec<Option<QuotaState>>)>, StoreError> {
        self.check()?.read_states(partition, keys).await
    }

    async fn repair_states(
        &self,
        partition: u16,
        position: &OutboxPosition,
        states: &[GateState],
    ) -> Result<bool, StoreError> {
        self.check()?.repair_states(partition, position, states).await
    }

    async fn rebuild_partition(
        &self,
        partition: u16,
        generation: u64,
        states: &[GateState],
    ) -> Result<u64, StoreError> {
        if self.0.discarded.lock().unwrap().remove(&partition) {
            self.lose();
        }
        self.check()?.rebuild_partition(partition, generation, states).await
    }

    async fn discard_generation(&self, partition: u16, generation: u64) -> Result<(), StoreError> {
        if self.check()?.ledger_generation(partition) == Some(generation) {
            self.0.discarded.lock().unwrap().insert(partition);
        }
        Ok(())
    }
}

/// The state of an account as the store keeps it is forgotten, as by a bug.
pub(super) async fn corrupt(store: &TestStore, account: &AccountKey) {
    let drained = store.current().read_outbox(account.partition, 1).await.unwrap();
    let state = GateState { key: account.clone(), state: QuotaState::default(), hard_limit: 1_000, holds: Vec::new() };
    let current = store.current();
    assert!(current.repair_states(account.partition, &drained.position, &[state]).await.unwrap());
    assert!(current.ping().await.is_ok());
}
