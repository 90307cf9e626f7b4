//! A client that makes as many reservations as its key remembers, and then floods that key.

use std::time::Duration;

use conformance::server::{KINDS, Server};
use conformance::suite::{decide_all, long_timeout_options};
use conformance::witness::Witness;
use lab::attacks::TIMEOUT;
use tidegate::spi::algorithm::holds::MAX_RESERVATIONS;
use tidegate::spi::algorithm::{AdjustmentOutcome, HoldOp, Op};
use tidegate::spi::{Adjustment, Check, Gate, LeaseOwner, Plan, ReservationTerms, Store, Subject};
use tidegate::{Limit, Rate};
use tidegate_redis::{BreakerState, RedisOptions};

const HOLD_TTL: Duration = Duration::from_mins(5);
/// Requests of the flood at the same moment, of different costs, so that they cannot be decided together.
const FLOOD: u64 = 2_000;
const ROUNDS: usize = 3;
const BYSTANDER_REQUESTS: u128 = 100;

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_beside_a_full_list_of_reservations_leaves_bystanders_alone() {
    let gate = Gate::for_rule("tokens", Limit::token_bucket(100_000_000, Rate::per_second(1).unwrap()).unwrap());
    let check = |subject: u128, cost: u64| Check::new(&gate, Subject::from_hash(subject), cost);
    for kind in KINDS {
        let server = Server::start(kind);
        let filler = server.store_with(long_timeout_options()).await;
        // They cost nothing, so that the limit does not bound them.
        let terms = |number: u64| ReservationTerms::new(LeaseOwner::from_number(number).unwrap(), HOLD_TTL, true);
        let reserve = |number: u64| Plan::new([check(0, 0)]).unwrap().with_reservation(terms(number));
        let release = |number: u64| {
            Adjustment::new(&check(0, 0), Op::Hold(HoldOp::Release { position: terms(number).position() }))
        };
        let numbers = 1..=MAX_RESERVATIONS as u64;
        for verdict in decide_all(&filler, &numbers.clone().map(reserve).collect::<Vec<_>>()).await {
            assert_eq!(verdict.unwrap().granted(), 1);
        }
        let endings = filler.apply(&numbers.map(release).collect::<Vec<_>>()).await.outcomes().unwrap();
        assert!(endings.iter().all(|ending| *ending == AdjustmentOutcome::Applied));

        let store = server.store_with(RedisOptions::new().with_timeout(TIMEOUT)).await;
        let witness = Witness::start(server.port()).await;
        let flood: Vec<Plan<'_>> = (1..=FLOOD).map(|cost| Plan::new([check(0, cost)]).unwrap()).collect();
        let attack = async {
            for _ in 0..ROUNDS {
                decide_all(&store, &flood).await;
            }
        };
        let bystanders = async {
            let mut passed = 0;
            for subject in 1..=BYSTANDER_REQUESTS {
                let verdict = store.decide(&Plan::new([check(subject, 1)]).unwrap()).await;
                passed += u128::from(verdict.is_ok_and(|verdict| verdict.granted() == 1));
            }
            passed
        };
        let ((), passed) = tokio::join!(attack, bystanders);
        let within_timeout = witness.saw_answers_within(TIMEOUT).await;
        let state = &store.server_states()[0];
        println!("{kind:?}: {passed} bystanders passed, slowest answer {:?}, {state:?}", witness.slowest_answer());
        // Whatever the machine does meanwhile: a call has at most 16 of them, except for the first two, before the list is known.
        let most = 16 * state.batches + 2 * 256 + BYSTANDER_REQUESTS as u64;
        assert!(state.batched_plans <= most, "{kind:?}: {state:?}");
        if within_timeout {
            assert_eq!(
                (passed, state.opened, state.breaker),
                (BYSTANDER_REQUESTS, 0, BreakerState::Closed),
                "{kind:?}"
            );
        }
    }
}
