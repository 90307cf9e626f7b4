//! The memory store under every interleaving of two threads (`make loom`).

use loom::sync::Arc;
use loom::thread;
use tidegate::spi::{Check, Gate, MAX_CHECKS, Network, Plan, Subject, Verdict};
use tidegate::{Clock, Limit, MemoryStore, Rate, Timestamp};

/// One key more than fits into one shard: the store has two shards, for `MAX_KEYS_PER_SHARD` keys each.
const MAX_KEYS_OF_TWO_SHARDS: usize = 897;
const MAX_KEYS_PER_SHARD: u128 = 448;

/// The highest bits of the hash choose the shard, so these two subjects of one gate are in different shards.
const ANN: Subject = Subject::from_hash(0);
const BOB: Subject = Subject::from_hash(OTHER_SHARD);
const OTHER_SHARD: u128 = 1 << 127;

/// A clock that does not advance. Loom cannot check the lock of `ManualClock`.
struct FixedClock;

impl Clock for FixedClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000)
    }
}

#[test]
fn only_one_of_two_threads_gets_the_last_unit() {
    loom::model(|| {
        let (store, gate) = (store(1), gate());
        let granted = race(&store, {
            let gate = gate.clone();
            move |store, _| take(store, &gate, &[ANN]).granted()
        });
        assert_eq!(granted.0 + granted.1, 1);
        assert_eq!(take(&store, &gate, &[ANN]).granted(), 0);
    });
}

#[test]
fn two_plans_in_opposite_order_do_not_deadlock_and_consume_all_or_nothing() {
    loom::model(|| {
        let (store, gate) = (store(MAX_KEYS_OF_TWO_SHARDS), gate());
        let granted = race(&store, {
            let gate = gate.clone();
            move |store, thread| {
                let subjects = if thread == 0 { [ANN, BOB] } else { [BOB, ANN] };
                let verdict = take(store, &gate, &subjects);
                // All or nothing: both checks agree with the whole plan.
                for check in verdict.checks() {
                    assert_eq!(check.consumed, verdict.granted() == 1);
                    assert_eq!(check.outcome.admitted, verdict.granted() == 1);
                }
                verdict.granted()
            }
        });
        assert_eq!(granted.0 + granted.1, 1);
        assert_eq!(take(&store, &gate, &[ANN]).granted(), 0);
        assert_eq!(take(&store, &gate, &[BOB]).granted(), 0);
    });
}

#[test]
fn a_plan_of_two_keys_consumes_nothing_if_another_thread_emptied_one() {
    loom::model(|| {
        let (store, gate) = (store(MAX_KEYS_OF_TWO_SHARDS), gate());
        let (both, ann) = race(&store, {
            let gate = gate.clone();
            move |store, thread| {
                let subjects: &[Subject] = if thread == 0 { &[BOB, ANN] } else { &[ANN] };
                take(store, &gate, subjects).granted()
            }
        });
        assert_eq!(both + ann, 1);
        // Bob has his unit left exactly if the plan of both was denied.
        assert_eq!(take(&store, &gate, &[BOB]).granted(), 1 - both);
    });
}

/// The subjects are in different shards and in one network, so that only the lock of the overflow bucket synchronises them.
#[test]
fn new_subjects_of_a_full_store_share_one_overflow_bucket_exactly() {
    loom::model(|| {
        let (store, gate) = (store(MAX_KEYS_OF_TWO_SHARDS), gate());
        fill(&store, &gate);
        let granted = race(&store, {
            let gate = gate.clone();
            move |store, thread| {
                let subject = if thread == 0 { ANN } else { BOB };
                take(store, &gate, &[subject]).granted()
            }
        });
        assert_eq!(granted.0 + granted.1, 1);
        assert_eq!(store.overflowed(), 2);
        assert_eq!(store.keys() as u128, 2 * MAX_KEYS_PER_SHARD + 1);
    });
}

/// Fills both shards with subjects other than Ann and Bob.
fn fill(store: &MemoryStore, gate: &Gate) {
    let residents: Vec<Subject> =
        (1..=MAX_KEYS_PER_SHARD).flat_map(|number| [number, number | OTHER_SHARD]).map(Subject::from_hash).collect();
    // As few plans as possible, since each multiplies the interleavings.
    for subjects in residents.chunks(MAX_CHECKS) {
        assert_eq!(take(store, gate, subjects).granted(), 1);
    }
    assert_eq!(store.overflowed(), 0);
}

fn store(max_keys: usize) -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new().with_max_keys(max_keys).with_clock(FixedClock))
}

/// A limit of one unit that never refills, since the clock does not advance.
fn gate() -> Gate {
    let limit = Limit::token_bucket(1, Rate::per_hour(1).unwrap()).unwrap();
    Gate::for_rule("api", limit)
}

fn take(store: &MemoryStore, gate: &Gate, subjects: &[Subject]) -> Verdict {
    let network = Some(Network::from_hash(1));
    let checks = subjects.iter().map(|subject| Check::new(gate, *subject, 1).with_network(network));
    store.decide_now(&Plan::new(checks).unwrap())
}

/// Runs `work` in two threads, numbered 0 and 1, and returns both results.
fn race(store: &Arc<MemoryStore>, work: impl Fn(&MemoryStore, usize) -> u64 + Clone + 'static) -> (u64, u64) {
    let other = {
        let (store, work) = (store.clone(), work.clone());
        thread::spawn(move || work(&store, 1))
    };
    let own = work(store, 0);
    (own, other.join().unwrap())
}
