//! Batches on keys with reservations.

use std::time::Duration;

use conformance::pure_store::PureStore;
use conformance::server::{KINDS, Kind, Server};
use conformance::suite::{decide_all, limits_of_every_kind, long_timeout_options, one_limit_of_each_kind};
use tidegate::ManualClock;
use tidegate::spi::algorithm::holds::MAX_RESERVATIONS;
use tidegate::spi::algorithm::{AdjustmentOutcome, HoldOp, Op};
use tidegate::spi::{Adjustment, Check, Gate, LeaseOwner, Plan, ReservationTerms, Store};

use super::{subject, two_stores};

/// How long reservations last.
const HOLD_TTL: Duration = Duration::from_secs(60);

/// A state with holds is binary, and 59 is the byte of the semicolon that separates the plans of a reply.
#[tokio::test]
async fn equal_plans_of_a_batch_are_decided_beside_holds_as_one_by_one() {
    for kind in KINDS {
        let server = Server::start(kind);
        for limit in limits_of_every_kind(100) {
            for (copies, cost) in [(2, 1), (3, 1), (8, 1), (2, 30), (3, 30), (2, 0), (3, 0), (2, 41), (3, 42)] {
                let gate = Gate::for_rule("tokens", limit);
                let plan = |cost: u64| Plan::new([Check::new(&gate, subject(1), cost)]).unwrap();
                let owner = LeaseOwner::from_number(59).unwrap();
                let reservation = plan(59).with_reservation(ReservationTerms::new(owner, HOLD_TTL, false));
                let stores = two_stores(&server, &ManualClock::default()).await;
                for store in &stores {
                    assert_eq!(store.decide(&reservation).await.unwrap().granted(), 1, "{limit:?}");
                    // Quotas are above the limit then, and others full.
                    let late = Check::new(&gate, subject(1), if cost == 0 { 60 } else { 0 });
                    store.apply(&[Adjustment::charge(&late)]).await.outcomes().unwrap();
                }
                let plans: Vec<Plan<'_>> = (0..copies).map(|_| plan(cost)).collect();
                let (order, verdicts) = stores[0].decide_batch(&plans).await;
                for index in order {
                    let (batch, single) = (verdicts[index].as_ref().unwrap(), stores[1].decide(&plans[index]).await);
                    assert_eq!(*batch, single.unwrap(), "{kind:?} {limit:?} {copies} of {cost}");
                }
                let _: () = redis::cmd("FLUSHDB").query(&mut server.connection()).unwrap();
            }
        }
    }
}

/// Plans that share a key take from it together, also beside holds, until nothing is left. The first of the holds has run out.
#[tokio::test]
async fn takes_of_a_shared_key_are_counted_beside_holds_as_one_by_one() {
    for kind in KINDS {
        let server = Server::start(kind);
        for limit in limits_of_every_kind(100) {
            for (cost, held) in [(0, 59), (1, 90), (3, 59), (7, 100), (42, 59)] {
                let (clock, tenant) = (ManualClock::default(), Gate::for_rule("tenant", limit));
                let client = Gate::for_rule("client", one_limit_of_each_kind(1)[0]);
                let stores = two_stores(&server, &clock).await;
                for (number, units) in [(1, 1), (2, held)] {
                    let terms = ReservationTerms::new(LeaseOwner::from_number(number).unwrap(), HOLD_TTL, true);
                    let check = Check::new(&tenant, subject(1000), units);
                    let reservation = Plan::new([check]).unwrap().with_reservation(terms);
                    for store in &stores {
                        store.decide(&reservation).await.unwrap();
                    }
                    clock.advance(HOLD_TTL / 2);
                }
                let plan = |number: u128| {
                    let checks =
                        [Check::new(&tenant, subject(1000), cost), Check::new(&client, subject(number % 20), 1)];
                    Plan::new(checks).unwrap()
                };
                let plans: Vec<Plan<'_>> = (0..24).map(plan).collect();
                let (order, verdicts) = stores[0].decide_batch(&plans).await;
                for index in order {
                    let (batch, single) = (verdicts[index].as_ref().unwrap(), stores[1].decide(&plans[index]).await);
                    assert_eq!(*batch, single.unwrap(), "{kind:?} {limit:?} plan {index} of {cost} beside {held}");
                }
                let _: () = redis::cmd("FLUSHDB").query(&mut server.connection()).unwrap();
            }
        }
    }
}

#[tokio::test]
async fn a_list_that_is_full_forgets_its_oldest_end_and_denies_if_all_are_open() {
    for kind in KINDS {
        let (server, clock) = (Server::start(kind), ManualClock::default());
        let [store, _] = two_stores(&server, &clock).await;
        let rust = PureStore::new(clock.clone());
        let gate = Gate::for_rule("tokens", one_limit_of_each_kind(10_000)[0]);
        let check = Check::new(&gate, subject(1), 1);
        let terms = |number: u64| ReservationTerms::new(LeaseOwner::from_number(number).unwrap(), HOLD_TTL, true);
        let reserve = |number: u64| Plan::new([check]).unwrap().with_reservation(terms(number));
        let decide = async |plan: &Plan<'_>| {
            let verdict = store.decide(plan).await.unwrap();
            assert_eq!(verdict, rust.decide(plan).await.unwrap(), "{kind:?}");
            verdict.granted() == 1
        };
        let commit = async |number: u64| {
            let commit = HoldOp::Commit { cost: 1, position: terms(number).position() };
            let commit = [Adjustment::new(&check, Op::Hold(commit))];
            let ending = store.apply(&commit).await.outcomes().unwrap();
            assert_eq!(ending, rust.apply(&commit).await.outcomes().unwrap(), "{kind:?}");
            ending[0]
        };
        let max = MAX_RESERVATIONS as u64;
        let reservations: Vec<Plan<'_>> = (1..=max).map(reserve).collect();
        for batch in reservations.chunks(256) {
            let (_, verdicts) = store.decide_batch(batch).await;
            for (plan, verdict) in batch.iter().zip(verdicts) {
                assert_eq!(verdict.unwrap(), rust.decide(plan).await.unwrap(), "{kind:?}");
            }
        }
        assert!(!decide(&reserve(max + 1)).await, "all are open");
        assert!(decide(&Plan::new([check]).unwrap()).await, "other requests pass");
        assert_eq!([commit(9).await, commit(7).await], [AdjustmentOutcome::Applied, AdjustmentOutcome::Applied]);
        assert!(decide(&reserve(max + 1)).await, "the end of 7, which was reserved first, is forgotten");
        assert_eq!([commit(7).await, commit(9).await], [AdjustmentOutcome::NotFound, AdjustmentOutcome::Repeated]);
        assert!(decide(&reserve(7)).await && !decide(&reserve(max + 2)).await, "all are open again");
        clock.advance(HOLD_TTL);
        assert!(decide(&reserve(1)).await, "all have run out");
    }
}

/// They take the server much longer than others. It does nothing else during a batch.
#[tokio::test]
async fn different_takes_beside_a_long_list_of_holds_are_sent_in_small_batches() {
    let server = Server::start(Kind::Redis);
    let [store, other] =
        [server.store_with(long_timeout_options()).await, server.store_with(long_timeout_options()).await];
    let gate = Gate::for_rule("tokens", one_limit_of_each_kind(10_000)[0]);
    let plan = |cost: u64| Plan::new([Check::new(&gate, subject(1), cost)]).unwrap();
    let reserve = |number: u64| {
        plan(0).with_reservation(ReservationTerms::new(LeaseOwner::from_number(number).unwrap(), HOLD_TTL, true))
    };
    let reservations: Vec<Plan<'_>> = (1..=100).map(reserve).collect();
    other.decide_batch(&reservations).await;
    let takes: Vec<Plan<'_>> = (1..=64).map(plan).collect();
    // The first reply says how long the list is.
    store.decide(&takes[0]).await.unwrap();
    let before = store.server_states()[0].batches;
    for verdict in decide_all(&store, &takes).await {
        assert_eq!(verdict.unwrap().granted(), 1);
    }
    let batches = store.server_states()[0].batches - before;
    assert!(batches >= 4, "64 takes in {batches} batches");
}
