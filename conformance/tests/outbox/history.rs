//! Random histories on a Redis store and on its twin in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use conformance::server::Server;
use conformance::suite::{START, long_timeout_options};
use tidegate::spi::algorithm::quota::QuotaState;
use tidegate::spi::algorithm::{Op, TakePosition};
use tidegate::spi::{
    AccountKey, Adjustment, Check, EntryId, EntryKind, Gate, GateHold, GateHoldStatus, GateState, Journal, Outbox,
    OutboxEntry, Plan, PlanMode, ReservationTerms, Store,
};
use tidegate::{Clock, ManualClock, MemoryStore, StoreError, Timestamp};
use tidegate_redis::RedisStore;

use super::fixture::{
    GENERATION, HARD_LIMIT, TTL, commit, drain_partition, flush, gate, owner, position_of, release, subject,
};

/// A history on a Redis store and on a memory store, which is the twin that never loses anything.
pub(super) struct History {
    redis: RedisStore,
    memory: MemoryStore,
    clock: ManualClock,
    gates: [Gate; 2],
    rng: Mutex<fastrand::Rng>,
    is_cluster: bool,
    /// Every entry until now.
    entries: Mutex<Vec<OutboxEntry>>,
    /// The entries that the last calls of both stores have told.
    told: [Mutex<BTreeSet<EntryId>>; 2],
}

struct NoJournal;

impl Journal for NoJournal {
    fn append(&self, _entries: &[OutboxEntry]) -> Result<(), StoreError> {
        Ok(())
    }

    fn acknowledge(&self, _ids: &[EntryId]) {}
}

impl History {
    pub(super) async fn start(server: &Server, seed: u64) -> Self {
        let clock = ManualClock::starting_at(START);
        let namespace = format!("h{seed}x").parse().unwrap();
        let redis = server.store_with(long_timeout_options().with_namespace(namespace).with_clock(clock.clone())).await;
        let memory = MemoryStore::new().with_clock(clock.clone()).with_journal(Arc::new(NoJournal));
        for partition in PARTITIONS {
            redis.rebuild_partition(partition, GENERATION, &[]).await.unwrap();
            memory.rebuild_partition(partition, GENERATION, &[]).await.unwrap();
        }
        let rng = fastrand::Rng::with_seed(seed).into();
        let (gates, is_cluster) = ([gate("api"), gate("all")], server.url().contains("cluster"));
        Self { redis, memory, clock, gates, rng, is_cluster, entries: Vec::new().into(), told: Default::default() }
    }

    pub(super) async fn run(&self, steps: usize) {
        for _ in 0..steps {
            self.step().await;
            self.compare().await;
        }
    }

    async fn step(&self) {
        let mut rng = self.rng.lock().unwrap().clone();
        let number = rng.u128(1..=2);
        let check = |gate: usize, cost: u64| Check::new(&self.gates[gate], subject(number + gate as u128), cost);
        let (cost, now) = (rng.u64(0..=60), self.clock.now());
        let one = check(0, cost);
        let plan = if rng.bool() { Plan::new([one, check(1, cost / 2)]) } else { Plan::new([one]) }.unwrap();
        let taken_at = now.as_micros().saturating_sub(rng.u64(0..=2) * 86_400_000_000);
        let position = position_of(Timestamp::from_micros(taken_at));
        let hold_owner = rng.u64(1..=6);
        match rng.u8(0..12) {
            0..=2 => self.decide(plan).await,
            3 => self.decide(plan.with_max_units(rng.u64(1..=4))).await,
            4 => self.decide(plan.with_mode(PlanMode::CountEach)).await,
            5 => self.adjust(&[Adjustment::new(&one, Op::Charge { cost: cost * 2, position })]).await,
            6 => {
                let charge = Op::Charge { cost, position: TakePosition::default() };
                let refund = Op::Refund { cost: rng.u64(0..=30), position };
                self.adjust(&[charge, refund].map(|op| Adjustment::new(&one, op))).await;
            }
            7 | 8 => self.decide(plan.with_reservation(ReservationTerms::new(owner(hold_owner), TTL, true))).await,
            9 => self.end(&Adjustment::new(&one, commit(hold_owner, cost))).await,
            10 => self.end(&Adjustment::new(&one, release(hold_owner))).await,
            _ => self.clock.advance(Duration::from_secs(rng.u64(0..=3) * 14_400 + rng.u64(0..=1_000))),
        }
        *self.rng.lock().unwrap() = rng;
    }

    async fn decide(&self, plan: Plan<'_>) {
        let (redis, memory) = (self.redis.decide(&plan).await.unwrap(), self.memory.decide(&plan).await.unwrap());
        assert_eq!(redis.granted(), memory.granted(), "{plan:?}");
        let (refusal, expected) = (redis.refusal(), memory.refusal());
        // Of two slots that refuse a reservation for different reasons, either may name its own.
        let is_same = refusal == expected || self.is_cluster && refusal.is_some() == expected.is_some();
        assert!(is_same, "{refusal:?} instead of {expected:?}: {plan:?}");
        for (told, verdict) in self.told.iter().zip([redis, memory]) {
            told.lock().unwrap().extend(verdict.entries().map(|(_, id)| id));
        }
    }

    async fn adjust(&self, adjustments: &[Adjustment<'_>]) {
        let (redis, memory) = (self.redis.apply(adjustments).await, self.memory.apply(adjustments).await);
        assert_eq!(redis.outcomes().unwrap(), memory.outcomes().unwrap(), "{adjustments:?}");
        for (told, results) in self.told.iter().zip([redis, memory]) {
            told.lock().unwrap().extend(results.entries());
        }
    }

    async fn end(&self, ending: &Adjustment<'_>) {
        self.adjust(std::slice::from_ref(ending)).await;
    }

    /// Compares the new entries of both, and the states with the sums of all entries.
    async fn compare(&self) {
        let (mut new, mut written) = (Vec::new(), [BTreeSet::new(), BTreeSet::new()]);
        for partition in PARTITIONS {
            let redis = drain_partition(&self.redis, partition).await;
            let without_ids = |entries: &[OutboxEntry]| -> Vec<OutboxEntry> {
                let id = EntryId { generation: 0, partition, millis: 0, sequence: 0 };
                let entries = entries.iter().map(|entry| OutboxEntry { id, ..entry.clone() });
                // A plan across slots that is denied gives back what it took.
                if self.is_cluster { lasting(entries) } else { entries.collect() }
            };
            let memory = drain_partition(&self.memory, partition).await;
            assert_eq!(without_ids(&redis), without_ids(&memory));
            written[0].extend(redis.iter().map(|entry| entry.id));
            written[1].extend(memory.iter().map(|entry| entry.id));
            new.extend(redis);
        }
        for (told, written) in self.told.iter().zip(written) {
            let told = std::mem::take(&mut *told.lock().unwrap());
            // A plan across slots that is denied does not tell what it took and gave back.
            assert!(told == written || self.is_cluster && told.is_subset(&written), "{told:?} {written:?}");
        }
        let mut entries = self.entries.lock().unwrap().clone();
        entries.extend(new);
        let states = self.redis_states(&entries).await;
        for (account, state) in states {
            let sums = ledger_totals(entries.iter().filter(|entry| entry.account() == account), state.index);
            let [(_, before), (carried, total)] = sums;
            assert_eq!((state.used + state.debt, state.carried), (total, carried), "{state:?}");
            assert_eq!(state.previous + state.carried, before, "{state:?}");
        }
        *self.entries.lock().unwrap() = entries;
    }

    async fn redis_states(&self, entries: &[OutboxEntry]) -> BTreeMap<AccountKey, QuotaState> {
        let mut states = BTreeMap::new();
        for account in entries.iter().map(OutboxEntry::account) {
            let (_, found) =
                self.redis.read_states(account.partition, std::slice::from_ref(&account)).await.unwrap().unwrap();
            let (_, twin) =
                self.memory.read_states(account.partition, std::slice::from_ref(&account)).await.unwrap().unwrap();
            let used = |state: Option<QuotaState>| state.filter(|state| state.used + state.previous > 0);
            // What a plan across slots takes and gives back moves the state to a later period.
            assert!(self.is_cluster || used(found[0]) == used(twin[0]), "{found:?} {twin:?}");
            states.extend(found[0].map(|state| (account, state)));
        }
        states
    }

    /// Deletes everything, and rebuilds it from the entries.
    pub(super) async fn lose_and_rebuild(&self, server: &Server) {
        let entries = self.entries.lock().unwrap().clone();
        let quotas = self.redis_states(&entries).await;
        flush(server);
        for partition in PARTITIONS {
            let accounts: BTreeSet<AccountKey> =
                entries.iter().map(OutboxEntry::account).filter(|account| account.partition == partition).collect();
            let states: Vec<GateState> = accounts
                .into_iter()
                .map(|key| GateState {
                    state: quotas.get(&key).copied().unwrap_or_default(),
                    hard_limit: HARD_LIMIT,
                    holds: holds(entries.iter().filter(|entry| entry.account() == key)),
                    key,
                })
                .collect();
            self.redis.rebuild_partition(partition, GENERATION + 1, &states).await.unwrap();
        }
    }
}

/// The partitions of the subjects of a history.
const PARTITIONS: [u16; 3] = [1, 2, 3];

/// What the ledger knows: the debt carried into a period and the total with it, for the period before `index` and for `index`.
fn ledger_totals<'e>(entries: impl Iterator<Item = &'e OutboxEntry>, index: u64) -> [(u64, u64); 2] {
    let mut sums: BTreeMap<u64, i64> = BTreeMap::new();
    for entry in entries {
        *sums.entry(entry.period).or_default() += entry.amount;
        *sums.entry(entry.period - 1).or_default() += entry.late_amount;
    }
    let (mut before, mut carried) = ((0, 0), 0_u64);
    for period in *sums.keys().next().unwrap()..=index {
        // A refund may be larger than what was taken in its period, and give back what that pays of a debt.
        let total = carried.checked_add_signed(sums.get(&period).copied().unwrap_or_default()).unwrap();
        if period == index {
            return [before, (carried, total)];
        }
        before = (carried, total);
        carried = total.saturating_sub(HARD_LIMIT);
    }
    [before, (0, 0)]
}

/// The entries without those that were given back or released at once.
fn lasting(entries: impl Iterator<Item = OutboxEntry>) -> Vec<OutboxEntry> {
    let mut lasting: Vec<OutboxEntry> = Vec::new();
    for entry in entries {
        let is_undone = |earlier: &OutboxEntry| {
            let is_same = earlier.account() == entry.account() && earlier.owner == entry.owner;
            is_same && earlier.amount == -entry.amount && entry.kind == EntryKind::Release
        };
        match lasting.iter().position(is_undone) {
            Some(index) => drop(lasting.remove(index)),
            None => lasting.push(entry),
        }
    }
    lasting
}

/// The reservations of one account, from its entries.
fn holds<'e>(entries: impl Iterator<Item = &'e OutboxEntry>) -> Vec<GateHold> {
    let mut holds: Vec<GateHold> = Vec::new();
    for entry in entries.filter(|entry| entry.owner > 0) {
        let open = holds.iter_mut().rev().find(|hold| hold.owner == entry.owner);
        match (entry.kind, open) {
            (EntryKind::Reserve, _) => holds.push(GateHold {
                owner: entry.owner,
                at: entry.at,
                expires_at: entry.expires_at,
                units: entry.held,
                status: GateHoldStatus::Open,
            }),
            (EntryKind::Commit, Some(hold)) => {
                hold.status = GateHoldStatus::Committed;
                hold.units = u64::try_from(entry.amount + entry.late_amount).unwrap();
            }
            (_, Some(hold)) => hold.status = GateHoldStatus::Released,
            (_, None) => panic!("{entry:?}"),
        }
    }
    holds
}
