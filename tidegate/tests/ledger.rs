//! Quotas with a ledger on the memory store: every change is recorded once, and nothing is admitted that is not recorded.

mod histories;
mod missing_subjects;
mod unverified;

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate::spi::algorithm::quota::QuotaState;
use tidegate::spi::{
    AccountKey, BoxFuture, EntryId, EntryKind, GateHold, GateHoldStatus, GateState, Journal, LedgerStage, Outbox,
    OutboxEntry, PARTITIONS, UnconfirmedEntry,
};
use tidegate::{
    Ending, Limit, Limiter, ManualClock, MemoryStore, OnFailure, Request, Rule, RuleSet, StoreError, StoreErrorKind,
    Timestamp, grants::GrantError, limits::Period, limits::Periods, rules::LedgerMode,
};

/// A journal that remembers what it was told, and may be full.
#[derive(Default)]
struct RecordingJournal {
    entries: Mutex<Vec<OutboxEntry>>,
    is_full: AtomicBool,
}

impl Journal for RecordingJournal {
    fn append(&self, entries: &[OutboxEntry]) -> Result<(), StoreError> {
        if self.is_full.load(Ordering::Relaxed) {
            return Err(StoreError::new(StoreErrorKind::Refused, "the disk is full"));
        }
        self.entries.lock().unwrap().extend_from_slice(entries);
        Ok(())
    }

    fn acknowledge(&self, ids: &[EntryId]) {
        self.entries.lock().unwrap().retain(|entry| !ids.contains(&entry.id));
    }
}

/// A ledger that confirms, refuses, or never answers.
#[derive(Default)]
struct TestStage {
    is_down: AtomicBool,
    refuses: AtomicBool,
    hangs: AtomicBool,
    unverified: Mutex<Option<StoreErrorKind>>,
    confirmed: Mutex<Vec<UnconfirmedEntry>>,
    journaled: Mutex<Vec<OutboxEntry>>,
    names: Mutex<Vec<(AccountKey, String)>>,
}

impl LedgerStage for TestStage {
    fn verified(&self) -> Result<(), StoreError> {
        self.unverified.lock().unwrap().map_or(Ok(()), |kind| Err(StoreError::new(kind, "the ledger was not verified")))
    }

    fn ready(&self) -> Result<(), StoreError> {
        if self.is_down.load(Ordering::Relaxed) {
            return Err(StoreError::new(StoreErrorKind::Unavailable, "the ledger is down"));
        }
        Ok(())
    }

    fn confirm(&self, entries: Vec<UnconfirmedEntry>) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            if self.hangs.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            if self.refuses.load(Ordering::Relaxed) {
                return Err(StoreError::new(StoreErrorKind::Unavailable, "the ledger is down"));
            }
            self.confirmed.lock().unwrap().extend(entries);
            Ok(())
        })
    }

    fn journal(&self, entries: Vec<OutboxEntry>) -> Result<(), StoreError> {
        self.journaled.lock().unwrap().extend(entries);
        Ok(())
    }

    fn name_account(&self, account: AccountKey, name: &str) {
        self.names.lock().unwrap().push((account, name.to_owned()));
    }
}

struct Setup {
    limiter: Limiter<Arc<MemoryStore>>,
    store: Arc<MemoryStore>,
    journal: Arc<RecordingJournal>,
    stage: Arc<TestStage>,
    clock: ManualClock,
}

const NOON: Timestamp = Timestamp::from_micros(1_800_014_400_000_000);

fn wait<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("the memory store decides at once"),
    }
}

fn daily(amount: u64, grace: u64) -> Limit {
    Limit::quota_with_grace(amount, grace, Periods::utc(Period::Day)).unwrap()
}

fn units(mode: LedgerMode) -> Rule {
    Rule::new("units", daily(10, 0)).with_per(["tenant"]).with_ledger(mode)
}

fn setup_with(rule: Rule) -> Setup {
    let clock = ManualClock::default();
    clock.set(NOON);
    let journal = Arc::<RecordingJournal>::default();
    let store = Arc::new(MemoryStore::new().with_clock(clock.clone()).with_journal(journal.clone()));
    let stage = Arc::<TestStage>::default();
    let limiter = Limiter::new(RuleSet::new([rule]).unwrap(), Arc::clone(&store)).with_ledger(stage.clone());
    Setup { limiter, store, journal, stage, clock }
}

fn setup(rule: Rule) -> Setup {
    let setup = setup_with(rule);
    for partition in 0..PARTITIONS {
        wait(setup.store.rebuild_partition(partition, 7, &[])).unwrap();
    }
    setup
}

fn request(cost: u64) -> Request<'static> {
    Request::new("export").with_attribute("tenant", "acme").with_cost(cost)
}

impl Setup {
    fn entries(&self) -> Vec<OutboxEntry> {
        self.journal.entries.lock().unwrap().clone()
    }

    /// The kinds and amounts of all entries.
    fn amounts(&self) -> Vec<(EntryKind, i64, i64)> {
        self.entries().iter().map(|entry| (entry.kind, entry.amount, entry.late_amount)).collect()
    }

    fn remaining(&self) -> Option<u64> {
        wait(self.limiter.peek(&request(1))).unwrap().remaining()
    }
}

#[test]
fn every_change_is_recorded_once_with_its_amount() {
    let setup = setup(units(LedgerMode::Async));
    let mut decision = wait(setup.limiter.check(&request(4))).unwrap();
    assert!(decision.is_allowed());
    assert!(!wait(setup.limiter.check(&request(7))).unwrap().is_allowed());
    wait(setup.limiter.end(&mut decision.take_grant(), &Ending::Refund)).unwrap();
    wait(setup.limiter.charge(&request(12))).unwrap();
    assert!(wait(setup.limiter.check(&request(0))).is_ok());
    let expected = [(EntryKind::Consume, 4, 0), (EntryKind::Release, -4, 0), (EntryKind::Consume, 12, 0)];
    assert_eq!(setup.amounts(), expected);
    let entry = &setup.entries()[0];
    assert_eq!((entry.stem.as_str(), entry.hard_limit, entry.id.generation, entry.at), ("units:u1d", 10, 7, NOON));
    let mut ids: Vec<EntryId> = setup.entries().iter().map(|entry| entry.id).collect();
    ids.dedup();
    assert_eq!(ids.len(), 3);
}

#[test]
fn a_reservation_is_recorded_when_it_is_made_and_when_it_ends() {
    let setup = setup(units(LedgerMode::Async));
    let reserve = |key| wait(setup.limiter.reserve(&request(4), Some(key))).unwrap().take_grant();
    let (mut first, mut second) = (reserve("a"), reserve("b"));
    let _ = reserve("a");
    wait(setup.limiter.end(&mut first, &Ending::Commit(3.into()))).unwrap();
    wait(setup.limiter.end(&mut first, &Ending::Commit(3.into()))).unwrap();
    wait(setup.limiter.end(&mut second, &Ending::Release)).unwrap();
    wait(setup.limiter.end(&mut second, &Ending::Release)).unwrap();
    let entries = setup.entries();
    let kinds: Vec<_> = entries.iter().map(|entry| (entry.kind, entry.amount, entry.held)).collect();
    let expected =
        [(EntryKind::Reserve, 0, 4), (EntryKind::Reserve, 0, 4), (EntryKind::Commit, 3, 0), (EntryKind::Release, 0, 0)];
    assert_eq!(kinds, expected);
    assert_eq!((entries[0].owner, entries[1].owner), (entries[2].owner, entries[3].owner));
    assert_eq!(entries[0].expires_at.since(NOON), Duration::from_secs(300));
}

/// A commit belongs to the period in which it was reserved.
#[test]
fn a_late_commit_is_recorded_in_the_period_before() {
    let setup = setup(units(LedgerMode::Async));
    setup.clock.set(NOON.plus(Duration::from_secs(43_190 - 14_400)));
    let midnight = Periods::utc(Period::Day).end_after(setup.store.now());
    setup.clock.set(Timestamp::from_micros(midnight.as_micros() - 10_000_000));
    let mut reservation = wait(setup.limiter.reserve(&request(4), None)).unwrap().take_grant();
    setup.clock.set(Timestamp::from_micros(midnight.as_micros() + 10_000_000));
    wait(setup.limiter.end(&mut reservation, &Ending::Commit(12.into()))).unwrap();
    let commit = &setup.entries()[1];
    assert_eq!((commit.kind, commit.amount, commit.late_amount), (EntryKind::Commit, 0, 12));
    assert_eq!(commit.period, setup.entries()[0].period + 1);
}

#[test]
fn nothing_is_admitted_while_a_partition_is_not_rebuilt() {
    let setup = setup_with(units(LedgerMode::Async));
    let error = wait(setup.limiter.check(&request(1))).unwrap_err();
    assert_eq!(
        (error.kind(), error.is_transient(), error.is_possibly_applied()),
        (StoreErrorKind::Rebuilding, true, false)
    );
    assert!(wait(setup.limiter.peek(&request(1))).is_err());
    assert!(wait(setup.limiter.charge(&request(1))).is_err());
    let [partition] = setup.store.take_written_partitions()[..] else { panic!("one partition was asked for") };
    assert_eq!(wait(setup.store.read_outbox(partition, 10)).unwrap().generation, None);
    assert_eq!(wait(setup.store.rebuild_partition(partition, 5, &[])).unwrap(), 5);
    assert_eq!(wait(setup.store.rebuild_partition(partition, 6, &[])).unwrap(), 5, "somebody else was first");
    assert!(wait(setup.limiter.check(&request(1))).unwrap().is_allowed());
}

#[test]
fn a_full_journal_refuses_the_request_and_changes_nothing() {
    let setup = setup(units(LedgerMode::Async));
    setup.journal.is_full.store(true, Ordering::Relaxed);
    assert_eq!(wait(setup.limiter.check(&request(4))).unwrap_err().kind(), StoreErrorKind::Refused);
    assert!(wait(setup.limiter.charge(&request(4))).is_err());
    assert!(!setup.limiter.check_now(&request(4)).is_allowed());
    setup.journal.is_full.store(false, Ordering::Relaxed);
    assert_eq!((setup.remaining(), setup.entries().len()), (Some(10), 0));
}

#[test]
fn a_sync_request_is_allowed_only_after_the_ledger_has_confirmed_it() {
    let setup = setup(units(LedgerMode::Sync));
    assert!(wait(setup.limiter.check(&request(4))).unwrap().is_allowed());
    let partition = setup.entries()[0].id.partition;
    assert_eq!(
        *setup.stage.confirmed.lock().unwrap(),
        [UnconfirmedEntry { partition, generation: 7, id: Some(setup.entries()[0].id) }]
    );
    let denied = wait(setup.limiter.check(&request(40))).unwrap();
    assert!(!denied.is_allowed());
    assert_eq!(setup.stage.confirmed.lock().unwrap().len(), 1, "a denial consumes nothing");
}

#[test]
fn a_sync_request_that_the_ledger_does_not_confirm_is_refunded() {
    let setup = setup(units(LedgerMode::Sync));
    setup.stage.refuses.store(true, Ordering::Relaxed);
    assert_eq!(wait(setup.limiter.check(&request(4))).unwrap_err().kind(), StoreErrorKind::Unavailable);
    assert_eq!(setup.remaining(), Some(10));
    assert_eq!(setup.amounts(), [(EntryKind::Consume, 4, 0), (EntryKind::Release, -4, 0)]);
    let error = wait(setup.limiter.reserve(&request(4), None)).unwrap_err();
    assert!(matches!(error, GrantError::Store(_)));
    assert_eq!(setup.remaining(), Some(10));
}

/// A refused request that was taken and given back would leave two entries, and a ledger that is down for long a full outbox.
#[test]
fn a_sync_request_is_not_sent_to_the_store_while_the_ledger_is_down() {
    let setup = setup(units(LedgerMode::Sync));
    setup.stage.is_down.store(true, Ordering::Relaxed);
    let error = wait(setup.limiter.check(&request(4))).unwrap_err();
    assert!(!error.is_possibly_applied());
    assert_eq!((setup.entries().len(), setup.remaining()), (0, Some(10)));
    setup.stage.is_down.store(false, Ordering::Relaxed);
    assert!(wait(setup.limiter.check(&request(4))).unwrap().is_allowed());
}

#[test]
fn what_the_store_denies_does_not_pass_while_the_ledger_is_down() {
    let setup = setup(units(LedgerMode::Sync).with_on_failure(OnFailure::Open));
    assert!(wait(setup.limiter.check(&request(10))).unwrap().is_allowed());
    setup.stage.is_down.store(true, Ordering::Relaxed);
    setup.stage.refuses.store(true, Ordering::Relaxed);
    assert!(!wait(setup.limiter.check(&request(1))).unwrap().is_allowed());
}

#[test]
fn a_caller_that_goes_away_before_the_ledger_answers_consumes_nothing() {
    let setup = setup(units(LedgerMode::Sync));
    setup.stage.hangs.store(true, Ordering::Relaxed);
    {
        let export = request(4);
        let mut check = pin!(setup.limiter.check(&export));
        assert!(check.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(setup.remaining(), Some(6));
    }
    assert_eq!(setup.remaining(), Some(10));
}

/// Otherwise money would be given away while the store fails.
#[test]
fn a_rule_with_a_ledger_is_closed_unless_it_says_otherwise() {
    assert_eq!(units(LedgerMode::Async).on_failure, OnFailure::Closed);
    assert_eq!(units(LedgerMode::Async).with_on_failure(OnFailure::Local).on_failure, OnFailure::Local);
}

#[test]
fn what_is_admitted_without_the_store_is_journaled() {
    let setup = setup_with(units(LedgerMode::Async).with_on_failure(OnFailure::Open));
    let decision = wait(setup.limiter.check(&request(4))).unwrap();
    assert!(decision.is_allowed());
    assert_eq!(decision.degraded(), Some(StoreErrorKind::Rebuilding));
    let journaled = setup.stage.journaled.lock().unwrap();
    assert_eq!(journaled.iter().map(|entry| (entry.kind, entry.amount)).collect::<Vec<_>>(), [(EntryKind::Consume, 4)]);
    assert_eq!(journaled[0].hard_limit, 10);
}

#[test]
fn a_rebuilt_state_decides_as_before_the_loss() {
    let before = setup(units(LedgerMode::Async));
    wait(before.limiter.charge(&request(13))).unwrap();
    let partition = before.entries()[0].id.partition;
    let key = before.entries()[0].account();
    let keys = [key.clone()];
    let (position, states) = wait(before.store.read_states(partition, &keys)).unwrap().unwrap();
    let state = states[0].unwrap();
    assert_eq!((state.used, state.debt), (10, 3));

    let after = setup_with(units(LedgerMode::Async));
    let gate_state = GateState { key, state, hard_limit: 10, holds: Vec::new() };
    wait(after.store.rebuild_partition(partition, 8, std::slice::from_ref(&gate_state))).unwrap();
    assert!(!wait(after.limiter.check(&request(0))).unwrap().is_allowed(), "in debt");
    let next_day = after.store.now().plus(Duration::from_secs(86_400));
    after.clock.set(next_day);
    assert_eq!(wait(after.limiter.check(&request(0))).unwrap().remaining(), Some(7));

    assert!(
        !wait(before.store.repair_states(partition, &position, std::slice::from_ref(&gate_state))).unwrap(),
        "entries wait"
    );
    let ids: Vec<EntryId> = before.entries().iter().map(|entry| entry.id).collect();
    wait(before.store.acknowledge(partition, &ids)).unwrap();
    let half = GateState { state: QuotaState { used: 5, debt: 0, ..state }, ..gate_state };
    assert!(wait(before.store.repair_states(partition, &position, &[half])).unwrap());
    assert_eq!(before.remaining(), Some(5));
    assert!(before.entries().is_empty());
}

/// The store may have lost the take before it was in the ledger: a refund would give back what was never counted.
#[test]
fn a_take_from_before_a_loss_does_not_go_back() {
    let before = setup(units(LedgerMode::Async));
    let mut receipt = wait(before.limiter.check(&request(4))).unwrap().take_grant();
    let partition = before.entries()[0].id.partition;
    let after = setup_with(units(LedgerMode::Async));
    wait(after.store.rebuild_partition(partition, 8, &[])).unwrap();
    assert!(wait(after.limiter.check(&request(4))).unwrap().is_allowed());
    wait(after.limiter.end(&mut receipt, &Ending::Refund)).unwrap();
    assert_eq!((after.remaining(), after.amounts()), (Some(6), vec![(EntryKind::Consume, 4, 0)]));
}

#[test]
fn the_names_of_tenants_reach_the_ledger_only_where_the_rule_says_so() {
    let silent = setup(units(LedgerMode::Async));
    assert!(wait(silent.limiter.check(&request(1))).unwrap().is_allowed());
    assert!(silent.stage.names.lock().unwrap().is_empty());
    let named = setup(units(LedgerMode::Async).with_ledger_names(true));
    assert!(wait(named.limiter.check(&request(1))).unwrap().is_allowed());
    assert_eq!(*named.stage.names.lock().unwrap(), [(named.entries()[0].account(), "acme".to_owned())]);
}

#[test]
fn a_rebuilt_reservation_holds_its_units_until_it_runs_out() {
    let before = setup(units(LedgerMode::Async));
    assert!(wait(before.limiter.check(&request(3))).unwrap().is_allowed());
    let account = before.entries()[0].account();
    let period = before.entries()[0].period;
    let hold = |owner, units, status| GateHold {
        owner,
        at: NOON,
        expires_at: NOON.plus(Duration::from_secs(60)),
        units,
        status,
    };
    let holds = vec![hold(8, 5, GateHoldStatus::Committed), hold(9, 4, GateHoldStatus::Open)];
    let state = QuotaState { index: period, used: 3, ..QuotaState::default() };
    let after = setup_with(units(LedgerMode::Async));
    let rebuilt = GateState { key: account.clone(), state, hard_limit: 10, holds };
    wait(after.store.rebuild_partition(account.partition, 8, &[rebuilt])).unwrap();
    assert_eq!(after.remaining(), Some(3), "four are held beside three that are used");
    after.clock.set(NOON.plus(Duration::from_secs(61)));
    assert_eq!(after.remaining(), Some(7));
}

/// A debt that the limit cuts, after its amount was lowered.
#[test]
fn a_denial_is_not_recorded_however_large_the_debt_is() {
    let setup = setup(units(LedgerMode::Async));
    wait(setup.limiter.charge(&request(5_000_000))).unwrap();
    let charged = setup.entries().len();
    let rule = Rule::new("units", daily(1, 0)).with_per(["tenant"]).with_ledger(LedgerMode::Async);
    let lowered = Limiter::new(RuleSet::new([rule]).unwrap(), Arc::clone(&setup.store));
    for _ in 0..3 {
        assert!(!wait(lowered.check(&request(1))).unwrap().is_allowed());
    }
    assert_eq!(setup.entries().len(), charged, "{:?}", setup.amounts());
}
