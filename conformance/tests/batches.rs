//! Plans that one script call decides together: every verdict is that of the same plans decided one by one, each key is read and
//! written once, and a plan that fails does not affect the others.

#[path = "batches/beside_holds.rs"]
mod beside_holds;

use std::collections::BTreeMap;
use std::time::Duration;

use conformance::anonymous::own_key_bounds;
use conformance::batch_history::{BatchHistory, batch_histories};
use conformance::dose;
use conformance::server::{KINDS, Kind, Server};
use conformance::suite::{key_name, limits_of_every_kind, long_timeout_options, one_limit_of_each_kind};
use tidegate::rules::AnonymousBounds;
use tidegate::spi::{
    Adjustment, Check, Gate, LeaseOwner, Network, Plan, PlanMode, ReservationTerms, Role, Store, Subject, Verdict,
};
use tidegate::{ManualClock, Rule, StoreErrorKind};
use tidegate_redis::RedisStore;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

/// Decisions in `make test`, on each kind of server.
const DEFAULT_DECISIONS: u64 = 8_000;

#[test]
fn batches_in_redis_agree_with_single_plans_and_the_model() {
    batches_agree(Kind::Redis, None);
}

#[test]
fn batches_in_valkey_agree_with_single_plans_and_the_model() {
    batches_agree(Kind::Valkey, None);
}

/// The keys of anonymous subjects are also counted alike: the second of two plans that share a new key extends it.
#[test]
fn batches_of_anonymous_subjects_agree_with_single_plans_and_the_model() {
    for kind in KINDS {
        batches_agree(kind, Some(own_key_bounds()));
    }
}

/// Over the cap, subjects without a key share an overflow bucket, also within a batch; those with a key keep it.
#[tokio::test]
async fn anonymous_subjects_over_the_cap_share_an_overflow_bucket_in_a_batch() {
    for kind in KINDS {
        let server = Server::start(kind);
        for limit in one_limit_of_each_kind(5) {
            let [batch, single] = two_stores(&server, &ManualClock::default()).await.map(|store| (store, Vec::new()));
            let rule = Rule::new("login", limit).with_per(["ip"]).with_anonymous(AnonymousBounds::new(2));
            let gate = Gate::new(rule, "", limit);
            let network = Some(Network::from_hash(1));
            let check = |subject: u128| {
                Check::new(&gate, Subject::from_hash(subject), 1).with_anonymous(true).with_network(network)
            };
            let plan = |subject: u128| Plan::new([check(subject)]).unwrap();
            let mut results = [batch, single];
            for (store, _) in &results {
                for known in [1, 2] {
                    store.apply(&[Adjustment::charge(&check(known))]).await.outcomes().unwrap();
                }
            }
            let two_checks = || Plan::new([check(9), check(10)]).unwrap();
            let plans: Vec<Plan<'_>> = [1, 3, 4, 1, 3, 3, 2, 5]
                .map(plan)
                .into_iter()
                .chain([two_checks(), two_checks(), plan(2).with_peek()])
                .collect();
            let (order, verdicts) = results[0].0.decide_batch(&plans).await;
            results[0].1 = order.iter().map(|index| verdicts[*index].clone().unwrap()).collect();
            for index in order {
                let verdict = results[1].0.decide(&plans[index]).await.unwrap();
                results[1].1.push(verdict);
            }
            assert_eq!(results[0].1, results[1].1, "{kind:?} {limit:?}");
            let overflowed = |verdict: &Verdict| verdict.checks()[0].overflowed;
            assert_eq!(results[0].1.iter().filter(|verdict| overflowed(verdict)).count(), 7, "{kind:?} {limit:?}");
            assert_eq!(results[0].0.anonymous_stats(), results[1].0.anonymous_stats(), "{kind:?} {limit:?}");
            let _: () = redis::cmd("FLUSHDB").query(&mut server.connection()).unwrap();
        }
    }
}

/// A function of Lua cannot return the numbers of such a batch at once.
#[tokio::test]
async fn a_full_batch_of_reservations_under_several_limits_is_decided() {
    for kind in KINDS {
        let server = Server::start(kind);
        let store = server.store_with(long_timeout_options()).await;
        let gates: Vec<Gate> =
            (0..8).map(|rule| Gate::for_rule(format!("rule{rule}"), one_limit_of_each_kind(1000)[0])).collect();
        let plan = |owner: u64| {
            let terms = ReservationTerms::new(LeaseOwner::from_number(owner).unwrap(), Duration::from_secs(60), true);
            Plan::new(gates.iter().map(|gate| Check::new(gate, subject(1), 4))).unwrap().with_reservation(terms)
        };
        let plans: Vec<Plan<'_>> = (1..=256).map(plan).collect();
        let (order, verdicts) = store.decide_batch(&plans).await;
        let granted = order.iter().filter(|index| verdicts[**index].as_ref().unwrap().granted() == 1).count();
        assert_eq!((order.len(), granted), (256, 250), "{kind:?}");
    }
}

/// A batch of the largest size costs the server as many reads and writes as it has keys.
#[tokio::test]
async fn a_batch_reads_every_key_once_and_writes_every_changed_key_once() {
    for kind in KINDS {
        let server = Server::start(kind);
        let (store, mut connection) = (server.store_with(long_timeout_options()).await, server.connection());
        for limit in limits_of_every_kind(10) {
            let (tenant, client) =
                (Gate::for_rule("tenant", one_limit_of_each_kind(1000)[0]), Gate::for_rule("client", limit));
            let plan = |number: u128| {
                let checks = [Check::new(&tenant, subject(1000), 1), Check::new(&client, subject(number % 4), 1)];
                Plan::new(checks).unwrap()
            };
            let plans: Vec<Plan<'_>> = (0..256).map(plan).collect();
            let _: () = redis::cmd("CONFIG").arg("RESETSTAT").query(&mut connection).unwrap();
            let (_, verdicts) = store.decide_batch(&plans).await;
            assert_eq!(
                verdicts.iter().filter(|verdict| verdict.as_ref().unwrap().granted() == 1).count(),
                40,
                "{limit:?}"
            );
            // The keys are new, which MGET does not tell from keys of another type.
            let expected = [("evalsha", 1), ("exists", 1), ("mget", 1), ("psetex", 5), ("time", 1)];
            assert_eq!(
                calls(&mut connection),
                expected.map(|(name, count)| (name.to_owned(), count)).into(),
                "{kind:?} {limit:?}"
            );
            let _: () = redis::cmd("FLUSHDB").query(&mut connection).unwrap();
        }
    }
}

/// Instances send batches of any size to one key of each kind, at the same time. Together they get exactly the limit.
#[tokio::test(flavor = "multi_thread")]
async fn batches_of_several_instances_get_exactly_the_limit() {
    const LIMIT: u64 = 1_000;
    for kind in KINDS {
        let server = Server::start(kind);
        let mut stores = Vec::new();
        for _ in 0..4 {
            stores.push(server.store_with(long_timeout_options()).await);
        }
        for limit in limits_of_every_kind(LIMIT) {
            let mut running = JoinSet::new();
            for (task, store) in stores.iter().cycle().take(16).cloned().enumerate() {
                running.spawn(async move {
                    let gate = Gate::for_rule("ride", limit);
                    let mut admitted = 0;
                    for round in 0..8 {
                        let size = [1, 2, 7, 64][(task + round) % 4];
                        let plan = || Plan::new([Check::new(&gate, subject(7), 1)]).unwrap();
                        // A peek in between is decided on its own and consumes nothing.
                        let plans: Vec<_> =
                            (0..size).map(|index| if index % 9 == 8 { plan().with_peek() } else { plan() }).collect();
                        let (_, verdicts) = store.decide_batch(&plans).await;
                        let consumed = |verdict: &Verdict| verdict.checks()[0].consumed;
                        admitted +=
                            verdicts.iter().filter(|verdict| consumed(verdict.as_ref().unwrap())).count() as u64;
                    }
                    admitted
                });
            }
            assert_eq!(running.join_all().await.into_iter().sum::<u64>(), LIMIT, "{kind:?} {limit:?}");
        }
    }
}

/// Trap 45: in a batch, too, a denied plan consumes nothing from its other checks, whichever of them denies.
#[tokio::test]
async fn a_denied_plan_of_a_batch_consumes_nothing_from_its_other_checks() {
    for kind in KINDS {
        for tight in 0..6 {
            let server = Server::start(kind);
            let store = server.store_with(long_timeout_options()).await;
            let gate = |index: usize| {
                let limits = limits_of_every_kind(if index == tight { 100 } else { 50_000 });
                Gate::for_rule(format!("r{index}"), limits[(index + tight) % 6])
            };
            let gates: Vec<Gate> = (0..6).map(gate).collect();
            let plan = || Plan::new(gates.iter().map(|gate| Check::new(gate, subject(1), 1))).unwrap();
            let plans: Vec<Plan<'_>> = (0..128).map(|_| plan()).collect();
            let (_, verdicts) = store.decide_batch(&plans).await;
            assert_eq!(verdicts.iter().filter(|verdict| verdict.as_ref().unwrap().granted() == 1).count(), 100);
            let peeked = store.decide(&plan().with_peek()).await.unwrap();
            for check in peeked.checks() {
                assert_eq!(check.outcome.limit - check.outcome.remaining, 100, "{kind:?}, rule {tight} is tight");
            }
        }
    }
}

/// A plan whose enforced check has an unreadable value fails alone; a shadow check only misses its own result.
#[tokio::test]
async fn an_unreadable_value_fails_only_the_plans_that_enforce_it() {
    for kind in KINDS {
        let server = Server::start(kind);
        let (store, mut connection) = (server.store_with(long_timeout_options()).await, server.connection());
        for limit in limits_of_every_kind(2) {
            for foreign_type in [false, true] {
                let gate = |rule: &str, role| Gate::for_rule(rule, limit).with_role(role);
                let (good, bad, shadow) =
                    (gate("good", Role::Enforced), gate("bad", Role::Enforced), gate("bad", Role::Shadow));
                let name = key_name(check_of(&bad).key());
                let write = if foreign_type { ["RPUSH", "newer"] } else { ["SET", "newer"] };
                let _: () = redis::cmd(write[0]).arg(&name).arg(write[1]).query(&mut connection).unwrap();
                let plans = [
                    plan_of(&[&good]),
                    plan_of(&[&good, &bad]),
                    plan_of(&[&good, &shadow]),
                    plan_of(&[&shadow]),
                    plan_of(&[&bad]),
                    plan_of(&[&good, &shadow]),
                    plan_of(&[&bad, &good]).with_mode(PlanMode::CountEach),
                    plan_of(&[&shadow]).with_max_units(3),
                    plan_of(&[&shadow, &good]).with_peek(),
                ];
                let expected = [Some(1), None, Some(1), Some(1), None, Some(0), None, Some(3), Some(0)];
                let outcome = |plan: &Plan<'_>, result: Result<Verdict, tidegate::StoreError>| match result {
                    Ok(verdict) => {
                        let shadow_checks = plan.checks().iter().zip(verdict.checks());
                        for (check, result) in shadow_checks.filter(|(check, _)| check.gate().role() == Role::Shadow) {
                            assert!(
                                !result.outcome.admitted && !result.consumed,
                                "{:?} {result:?}",
                                check.gate().rule()
                            );
                        }
                        Some(verdict.granted())
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), StoreErrorKind::Unreadable, "{error}");
                        assert!(!error.is_possibly_applied(), "{error}");
                        None
                    }
                };
                let (_, verdicts) = store.decide_batch(&plans).await;
                let found: Vec<_> = plans.iter().zip(verdicts).map(|(plan, verdict)| outcome(plan, verdict)).collect();
                assert_eq!(found, expected, "in a batch: {kind:?} {limit:?} {foreign_type}");
                store.forget(&[*check_of(&good).key()]).await.unwrap();
                let mut found = Vec::new();
                for plan in &plans {
                    found.push(outcome(plan, store.decide(plan).await));
                }
                assert_eq!(found, expected, "alone: {kind:?} {limit:?} {foreign_type}");
                let read = if foreign_type { "LPOP" } else { "GETDEL" };
                let kept: String = redis::cmd(read).arg(&name).query(&mut connection).unwrap();
                assert_eq!(kept, "newer");
                let _: () = redis::cmd("FLUSHDB").query(&mut connection).unwrap();
            }
        }
    }
}

// === Helpers ===

fn batches_agree(kind: Kind, anonymous: Option<AnonymousBounds>) {
    let (server, runtime, clock) = (Server::start(kind), runtime(), ManualClock::default());
    let stores = runtime.block_on(two_stores(&server, &clock));
    let agree = |history: BatchHistory| runtime.block_on(history.agree(&clock, &stores, anonymous));
    let decisions = dose::run(DEFAULT_DECISIONS, &batch_histories(), BatchHistory::decisions, agree);
    println!("{kind:?} {anonymous:?}: {decisions} decisions");
}

/// Two stores on `server` whose keys differ.
async fn two_stores(server: &Server, clock: &ManualClock) -> [RedisStore; 2] {
    let options = || long_timeout_options().with_clock(clock.clone());
    [server.store_with(options()).await, server.store_with(options().with_namespace("other".parse().unwrap())).await]
}

fn check_of(gate: &Gate) -> Check<'_> {
    Check::new(gate, subject(1), 1)
}

fn plan_of<'g>(gates: &[&'g Gate]) -> Plan<'g> {
    Plan::new(gates.iter().map(|gate| check_of(gate))).unwrap()
}

fn subject(number: u128) -> Subject {
    Subject::from_hash(number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}

/// The number of calls of each command since the last reset, except `CONFIG` and `INFO`.
fn calls(connection: &mut redis::Connection) -> BTreeMap<String, u64> {
    let stats: String = redis::cmd("INFO").arg("commandstats").query(connection).unwrap();
    let counted = stats.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
    });
    counted.filter(|(name, _)| !name.starts_with("config") && !["info", "flushdb"].contains(&name.as_str())).collect()
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}
