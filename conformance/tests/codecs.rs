//! The values of every kind of limit, byte by byte: as the scripts write them, and what Rust reads in them.
//!
//! A value outlives the version that wrote it. So these bytes change only together with the version of the keys.

use std::time::Duration;

use conformance::server::{Kind, Server};
use conformance::suite::{START, key_name, long_timeout_options};
use tidegate::limits::{Penalty, Period, Periods, Window};
use tidegate::rules::LedgerMode;
use tidegate::spi::algorithm::quota::QuotaState;
use tidegate::spi::algorithm::{HoldOp, Op, TakePosition};
use tidegate::spi::{
    AccountKey, Adjustment, Check, Gate, GateHold, GateHoldStatus, GateState, LeaseOwner, Outbox, Plan,
    ReservationTerms, Store, Subject,
};
use tidegate::{Limit, ManualClock, Rate};
use tidegate_redis::RedisStore;

const MINUTE: Duration = Duration::from_secs(60);
const TTL: Duration = Duration::from_secs(300);

/// What happens to a key, a microsecond after the step before.
#[derive(Clone, Copy, Debug)]
enum Step {
    Take(u64),
    Charge(u64),
    /// Of the take before, while nothing else was taken; at the end of its first take otherwise.
    Refund(u64),
    /// By the owner with this number.
    Reserve(u64, u64),
    Commit(u64, u64),
    Release(u64),
    /// A slot for the owner with this number.
    Slot(u64, u64),
    Pass(Duration),
    Back(Duration),
}

use Step::{Back, Charge, Commit, Pass, Refund, Release, Reserve, Slot, Take};

fn owner(number: u64) -> LeaseOwner {
    LeaseOwner::from_number(number).unwrap()
}

fn terms(number: u64) -> ReservationTerms {
    ReservationTerms::new(owner(number), TTL, true)
}

/// Carries out the steps under `limit`. Returns the value, and what a peek of a unit finds in it: admitted or not, remaining, and the
/// microseconds of retry, reset and delay.
async fn value_after(server: &Server, store: &RedisStore, clock: &ManualClock, limit: Limit, steps: &[Step]) -> String {
    clock.set(START);
    let gate = Gate::for_rule("r", limit);
    let check = |cost| Check::new(&gate, Subject::from_hash(7), cost);
    let mut first_take = None;
    for step in steps {
        clock.advance(Duration::from_micros(1));
        let adjust = match *step {
            Take(cost) => {
                let verdict = store.decide(&Plan::new([check(cost)]).unwrap()).await.unwrap();
                first_take = first_take.or(Some(verdict.checks()[0].position));
                None
            }
            Slot(number, cost) => {
                let plan = Plan::new([check(cost)]).unwrap().with_lease_owner(owner(number));
                store.decide(&plan).await.unwrap();
                first_take = first_take.or(Some(TakePosition::from_owner(owner(number))));
                None
            }
            Reserve(number, cost) => {
                store.decide(&Plan::new([check(cost)]).unwrap().with_reservation(terms(number))).await.unwrap();
                None
            }
            Charge(cost) => Some(Op::Charge { cost, position: TakePosition::default() }),
            Refund(cost) => Some(Op::Refund { cost, position: first_take.unwrap() }),
            Commit(number, cost) => Some(Op::Hold(HoldOp::Commit { cost, position: terms(number).position() })),
            Release(number) => Some(Op::Hold(HoldOp::Release { position: terms(number).position() })),
            Pass(span) => {
                clock.advance(span);
                None
            }
            Back(span) => {
                clock.set(tidegate::Timestamp::from_micros(START.as_micros() - span.as_micros() as u64));
                None
            }
        };
        if let Some(op) = adjust {
            assert!(store.apply(&[Adjustment::new(&check(1), op)]).await.outcomes().is_ok(), "{step:?}");
        }
    }
    let name = key_name(check(1).key());
    let mut connection = server.connection();
    let value: Vec<u8> = redis::cmd("GET").arg(&name).query(&mut connection).unwrap();
    let peek = store.decide(&Plan::new([check(1)]).unwrap().with_peek()).await.unwrap();
    let _: () = redis::cmd("DEL").arg(&name).query(&mut connection).unwrap();
    let outcome = peek.checks()[0].outcome;
    let times = [outcome.retry_after, Some(outcome.reset_after), Some(outcome.delay)];
    let [retry, reset, delay] = times.map(|time| time.map_or("never".to_owned(), |time| time.as_micros().to_string()));
    let admitted = if outcome.admitted { "admits" } else { "denies" };
    format!("{} | {admitted} {} {retry} {reset} {delay}", value.escape_ascii(), outcome.remaining)
}

fn token_bucket(capacity: u64, per_second: u64) -> Limit {
    Limit::token_bucket(capacity, Rate::per_second(per_second).unwrap()).unwrap()
}

/// The limit, what happens, and the value after it with what a peek finds in it.
type Value = (Limit, Vec<Step>, &'static str);

fn buckets() -> Vec<Value> {
    let leaky = Limit::leaky_bucket(Rate::per_second(7).unwrap(), 9).unwrap();
    let day = Duration::from_secs(86_400);
    vec![
        (token_bucket(10, 1), vec![Take(4)], "1789948804000001 | admits 6 never 4000000 0"),
        (token_bucket(10, 3), vec![Take(4)], "11789948801333334 | admits 6 never 1333334 0"),
        (token_bucket(10, 1), vec![Take(4), Take(3), Refund(4)], "1789948803000003,3999998 | admits 7 never 3000000 0"),
        (token_bucket(10, 3), vec![Take(4), Take(3), Refund(4)], "1789948801000003,1333332 | admits 7 never 1000000 0"),
        (token_bucket(10, 1), vec![Take(4), Refund(4)], "1789948800000002 | admits 10 never 0 0"),
        (token_bucket(10, 1), vec![Take(10), Back(day), Take(1)], "1789862410000001 | denies 0 1000000 10000000 0"),
        (
            token_bucket(10, 1),
            vec![Take(1), Reserve(1, 3), Reserve(2, 4), Take(1)],
            r"\x00\x00\x00\x00\x00\x11\xe1\xa3\x00\x00\x00\x00\x00\x00\x00\x07\x00\x00\x00\x00\x00\x00\x00\x00\x02\x06[\xf2\xeec\xe0\x02\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03\x00\x06[\xf2\xeec\xe0\x03\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x04\x001789948802000001 | admits 1 never 8999997 0",
        ),
        (
            token_bucket(10, 1),
            vec![Reserve(1, 3), Reserve(2, 4), Commit(1, 2), Release(2)],
            r"\x00\x00\x00\x00\x00\x11\xe1\xa3\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x06[\xf2\xeec\xe0\x01\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x02\x01\x06[\xf2\xeec\xe0\x02\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x021789948802000003 | admits 8 never 1999999 0",
        ),
        (leaky, vec![Take(4)], "41789948800571429 | admits 6 never 571429 571429"),
        (leaky, vec![Take(4), Charge(3)], "1789948801000001 | admits 3 never 999999 999999"),
        (leaky, vec![Take(4), Refund(2)], "21789948800285715 | admits 8 never 285714 285714"),
    ]
}

fn windows() -> Vec<Value> {
    let fixed = |window: Window| Limit::fixed_window(10, window).unwrap();
    let sliding = Limit::sliding_window(10, MINUTE, 6).unwrap();
    let quota = Limit::quota_with_grace(10, 2, Periods::utc(Period::Day)).unwrap();
    let day = Duration::from_secs(86_400);
    vec![
        (fixed(MINUTE.into()), vec![Take(4), Charge(3)], "70029832480 | admits 3 never 59999998 0"),
        (
            fixed(Duration::from_millis(500).into()),
            vec![Take(4), Refund(1)],
            "30000003579897600 | admits 7 never 499998 0",
        ),
        (fixed(Window::MONTH), vec![Take(10)], "100000000680 | denies 0 863999999999 863999999999 0"),
        (
            fixed(Window::YEAR),
            vec![Take(4), Back(400 * day), Take(10)],
            "40000000055 | admits 6 never 11836799999999 0",
        ),
        (
            fixed(MINUTE.into()),
            vec![Take(4), Reserve(1, 3)],
            r"\x00\x00\x00\x00\x00\x11\xe1\xa3\x00\x00\x00\x00\x00\x00\x00\x03\x06[\xf2\xeec\xe0\x00\x00\x01\x06[\xf2\xeec\xe0\x02\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03\x0040029832480 | admits 3 never 59999998 0",
        ),
        (sliding, vec![Take(4), Pass(MINUTE / 2), Take(6)], "178994883,6,0,0,4 | denies 0 32499997 69999997 0"),
        (sliding, vec![Take(4), Pass(MINUTE / 2), Take(5), Refund(4)], "178994883,5 | admits 5 never 69999996 0"),
        (
            sliding,
            vec![Take(4), Reserve(1, 6)],
            r"\x00\x00\x00\x00\x00\x11\xe1\xa3\x00\x00\x00\x00\x00\x00\x00\x06\x00\x00\x00\x00\x00\x00\x00\x00\x01\x06[\xf2\xeec\xe0\x02\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x06\x00178994880,4 | denies 0 1000000 69999998 0",
        ),
        (quota, vec![Take(4)], "400739879 | admits 6 never 86399999999 0"),
        (quota, vec![Take(11)], "1100739879 | admits 0 never 86399999999 0"),
        (quota, vec![Take(4), Pass(day), Take(3)], "300739880,4 | admits 7 never 86399999997 0"),
        (
            quota,
            vec![Take(4), Charge(30), Pass(day), Charge(1)],
            "1200739880,12,11,22 | denies 0 86399999996 172799999996 0",
        ),
        (quota, vec![Take(4), Charge(30), Refund(5)], "1200739879,0,17,0 | denies 0 172799999997 259199999997 0"),
        (
            quota,
            vec![Take(4), Reserve(1, 3), Reserve(2, 2), Commit(1, 30)],
            r"\x00\x00\x00\x00\x00\x11\xe1\xa3\x00\x00\x00\x00\x00\x00\x00\x02\x06[\xf2\xeec\xe0\x00\x00\x02\x06[\xf2\xeec\xe0\x02\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x1e\x01\x06[\xf2\xeec\xe0\x03\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x02\x001200739879,0,22,0 | denies 0 172799999996 259199999996 0",
        ),
        (
            quota,
            vec![Reserve(1, 3), Pass(day)],
            r"\x00\x00\x00\x00\x00\x11\xe1\xa3\x00\x00\x00\x00\x00\x00\x00\x03\x06[\xf2\xeec\xe0\x00\x00\x01\x06[\xf2\xeec\xe0\x01\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03\x00 | admits 10 never 0 0",
        ),
    ]
}

fn lists() -> Vec<Value> {
    let log = Limit::sliding_log(10, MINUTE).unwrap();
    let slots = Limit::concurrency(10, MINUTE).unwrap();
    vec![
        (
            log,
            vec![Take(4), Pass(MINUTE / 2), Take(6)],
            r"\x00\n\x06[\xf2\xeec\xe0\x01\x00\x04\x06[\xf2\xf0-\xa3\x83\x00\x06 | denies 0 29999998 60000000 0",
        ),
        (
            log,
            vec![Take(4), Pass(MINUTE / 2), Take(6), Refund(1)],
            r"\x00\t\x06[\xf2\xeec\xe0\x01\x00\x03\x06[\xf2\xf0-\xa3\x83\x00\x06 | admits 1 never 59999999 0",
        ),
        (
            log,
            vec![Take(4), Take(6), Back(MINUTE), Take(1)],
            r"\x00\n\x06[\xf2\xea\xd0Y\x01\x00\n | denies 0 60000000 60000000 0",
        ),
        (
            log,
            vec![Take(4), Reserve(1, 3), Reserve(2, 2), Commit(1, 5)],
            r"\x00\x00\x00\x00\x00\x11\xe1\xa3\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00\x02\x06[\xf2\xeec\xe0\x02\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x05\x01\x06[\xf2\xeec\xe0\x03\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x02\x00\x00\t\x06[\xf2\xeec\xe0\x01\x00\x04\x06[\xf2\xeec\xe0\x04\x00\x05 | denies 0 1000000 60000000 0",
        ),
        (
            slots,
            vec![Slot(7, 4), Slot(9, 3)],
            r"\x00\x07\x06[\xf2\xeec\xe0\x01\x00\x00\x00\x00\x00\x00\x07\x00\x04\x06[\xf2\xeec\xe0\x02\x00\x00\x00\x00\x00\x00\t\x00\x03 | admits 3 never 60000000 0",
        ),
        (
            slots,
            vec![Slot(7, 4), Slot(9, 6), Refund(1)],
            r"\x00\t\x06[\xf2\xeec\xe0\x01\x00\x00\x00\x00\x00\x00\x07\x00\x03\x06[\xf2\xeec\xe0\x02\x00\x00\x00\x00\x00\x00\t\x00\x06 | admits 1 never 59999999 0",
        ),
        (
            slots,
            vec![Slot(7, 4), Slot(9, 6), Back(MINUTE), Slot(3, 6)],
            r"\x00\n\x06[\xf2\xea\xd0Y\x01\x00\x00\x00\x00\x00\x00\x07\x00\x04\x06[\xf2\xea\xd0Y\x01\x00\x00\x00\x00\x00\x00\t\x00\x06 | denies 0 1000000 60000000 0",
        ),
    ]
}

#[tokio::test]
async fn every_value_is_written_and_read_as_by_earlier_versions() {
    let (server, clock) = (Server::start(Kind::Redis), ManualClock::starting_at(START));
    let store = server.store_with(long_timeout_options().with_clock(clock.clone())).await;
    let mut found = Vec::new();
    for (limit, steps, expected) in [buckets(), windows(), lists()].concat() {
        let value = value_after(&server, &store, &clock, limit, &steps).await;
        if value != expected {
            found.push(format!("{limit:?} {steps:?}\n{value}"));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// A penalty is a check beside the limit whose denials it counts.
#[tokio::test]
async fn the_value_of_a_penalty_is_written_and_read_as_by_earlier_versions() {
    let (server, clock) = (Server::start(Kind::Redis), ManualClock::starting_at(START));
    let store = server.store_with(long_timeout_options().with_clock(clock.clone())).await;
    let penalty = Penalty::new(2, MINUTE, 2, 60 * MINUTE).unwrap();
    let rule =
        tidegate::Rule::new("login", token_bucket(1, 1)).with_per(["user"]).with_security().with_denial_cache(false);
    let rules = tidegate::RuleSet::new([rule.with_penalty(penalty)]).unwrap();
    let limiter = tidegate::Limiter::new(rules, store);
    let request = tidegate::Request::new("").with_attribute("user", "ann");
    let mut values = Vec::new();
    for _ in 0..3 {
        let decision = limiter.check(&request).await.unwrap();
        let name = key_name(limiter.plan(&request).checks()[1].key());
        let value: Option<Vec<u8>> = redis::cmd("GET").arg(&name).query(&mut server.connection()).unwrap();
        let value = value.map_or("none".to_owned(), |value| value.escape_ascii().to_string());
        values.push(format!("{value} | {:?}", decision.retry_after()));
    }
    assert_eq!(values, ["none | None", "11789948800000000 | Some(1s)", "21789948860000000 | Some(60s)"]);
}

/// The ledger writes states that no script has made.
#[tokio::test]
async fn a_state_of_the_ledger_is_written_and_read_as_by_earlier_versions() {
    let (server, clock) = (Server::start(Kind::Redis), ManualClock::starting_at(START));
    let store = server.store_with(long_timeout_options().with_clock(clock.clone())).await;
    let limit = Limit::quota(10, Periods::utc(Period::Day)).unwrap();
    let rule = tidegate::Rule::new("r", limit).with_per(["subject"]).with_ledger(LedgerMode::Async);
    let gate = Gate::new(rule, "", limit);
    // Of the day of `START`.
    let index = 739_879;
    let hold = |owner, units, status| GateHold {
        owner,
        at: START.plus(Duration::from_micros(owner)),
        expires_at: START.plus(Duration::from_secs(300 * owner)),
        units,
        status,
    };
    let holds = vec![
        hold(1, 3, GateHoldStatus::Open),
        hold(2, 4, GateHoldStatus::Committed),
        hold(3, 5, GateHoldStatus::Released),
    ];
    let used = |used| QuotaState { index, used, ..QuotaState::default() };
    let (partition, mut states, mut names) = (3_u16, Vec::new(), Vec::new());
    for (number, state, holds) in [
        (1_u128, used(4), Vec::new()),
        (2, QuotaState { previous: 3, ..used(4) }, Vec::new()),
        (3, QuotaState { debt: 7, previous: 3, carried: 2, ..used(10) }, Vec::new()),
        (4, used(4), holds.clone()),
        (5, QuotaState::default(), holds),
    ] {
        let check = Check::new(&gate, Subject::from_hash(u128::from(partition) << 96 | number), 1);
        names.push(key_name(check.key()));
        states.push(GateState { key: AccountKey::from_key(check.key()), state, hard_limit: 10, holds });
    }
    assert_eq!(store.rebuild_partition(partition, 5, &states).await.unwrap(), 5);
    let mut connection = server.connection();
    let values: Vec<Vec<u8>> = redis::cmd("MGET").arg(&names).query(&mut connection).unwrap();
    let values: Vec<String> = values.iter().map(|value| value.escape_ascii().to_string()).collect();
    let expected = [
        "400739879",
        "400739879,3",
        "1000739879,3,7,2",
        r"\x00\x00\x00\x00\x005\xa4\xe8\xfd\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x03\x06[\xf2\xeec\xe0\x01\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03\x00\x06[\xf2\xeec\xe0\x02\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x04\x01\x06[\xf2\xeec\xe0\x03\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00\x02400739879",
        r"\x00\x00\x00\x00\x005\xa4\xe8\xfd\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x03\x06[\xf2\xeec\xe0\x01\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03\x00\x06[\xf2\xeec\xe0\x02\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x04\x01\x06[\xf2\xeec\xe0\x03\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00\x02",
    ];
    assert_eq!(values, expected);
    let keys: Vec<AccountKey> = states.iter().map(|state| state.key.clone()).collect();
    let read = store.read_states(partition, &keys).await.unwrap().unwrap().1;
    let written = states.iter().map(|state| Some(state.state).filter(|state| !state.is_empty()));
    assert_eq!(read, written.collect::<Vec<_>>());
    let check = Check::new(&gate, states[3].key.subject, 1);
    let held = store.outstanding(&Plan::new([check]).unwrap()).await.unwrap().checks[0];
    assert_eq!((held.reservations, held.units, held.oldest_ends - START.as_micros()), (1, 3, 899_999_998));
}
