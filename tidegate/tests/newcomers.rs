//! Floods of subjects in the memory store: what legitimate newcomers get during and after them.
//!
//! The store has one overflow bucket for each sixteen keys, each with the limit of one subject. A flood from k networks uses up at
//! most k of them, so that a newcomer of another network is denied with a probability of at most k / buckets. Which networks share a
//! bucket is random, so the bounds of these tests leave room for chance: less than one run in a billion exceeds them.

use std::time::Duration;

use tidegate::grants::{GrantError, Retake};
use tidegate::rules::AnonymousBounds;
use tidegate::{
    Decision, Ending, Limit, Limiter, ManualClock, MemoryStore, Rate, Request, Rule, RuleSet, Secret, Timestamp,
};

const MAX_KEYS: usize = 20_000;
const BUCKETS: usize = MAX_KEYS / 16;
const NEWCOMERS: usize = 300;
/// More than twice as many subjects as fit.
const FLOOD: usize = 50_000;
const HOUR: Duration = Duration::from_secs(3600);

/// A limiter of three requests per subject that do not come back within an hour.
fn limiter(anonymous: bool) -> (Limiter<MemoryStore>, ManualClock) {
    let clock = ManualClock::starting_at(Timestamp::from_micros(1_790_000_000_000_000));
    let rule = Rule::new("public", Limit::token_bucket(3, Rate::new(3, HOUR).unwrap()).unwrap()).with_per(["ip"]);
    let rule = if anonymous { rule.with_anonymous(AnonymousBounds::default()) } else { rule };
    let store = MemoryStore::new().with_max_keys(MAX_KEYS).with_clock(clock.clone());
    (Limiter::new(RuleSet::new([rule]).unwrap(), store).with_secret(&Secret::random()), clock)
}

fn send(limiter: &Limiter<MemoryStore>, subject: &str) -> Decision {
    limiter.check_now(&Request::new("").with_attribute("ip", subject))
}

fn is_overflowed(decision: &Decision) -> bool {
    decision.checks()[0].is_overflowed()
}

/// A subject of a flood from this many /48 networks, each with many /64 networks.
fn address_of_flood(number: usize, networks: usize) -> String {
    format!("2001:db8:{:x}:{:x}::1", number % networks, number / networks)
}

/// How many newcomers pass, each from a network of its own.
fn served_newcomers(limiter: &Limiter<MemoryStore>) -> usize {
    let address = |number: usize| format!("198.{}.{}.7", 18 + number / 250, number % 250);
    (0..NEWCOMERS).filter(|number| send(limiter, &address(*number)).is_allowed()).count()
}

/// Trap: all newcomers shared one bucket, which the flood kept empty: 1,000 of 1,000 were denied.
#[test]
fn a_flood_from_a_few_networks_denies_hardly_a_newcomer_of_another() {
    for networks in [1, 4] {
        for anonymous in [true, false] {
            let (limiter, clock) = limiter(anonymous);
            (0..FLOOD).for_each(|number| drop(send(&limiter, &address_of_flood(number, networks))));
            // On average 300 * 4 / 1,250.
            let served = served_newcomers(&limiter);
            assert!(served + 15 > NEWCOMERS, "during the flood: {served} of {NEWCOMERS}");
            let neighbours = (0..100).filter(|number| {
                let decision = send(&limiter, &format!("2001:db8:0:ff{number:02}::1"));
                assert!(is_overflowed(&decision));
                decision.is_allowed()
            });
            assert_eq!(neighbours.count(), 0, "the network of the flood has used up its bucket");
            // Five minutes later the flood is over, but its keys have not expired. Its buckets have refilled by a quarter of a request.
            clock.advance(Duration::from_secs(300));
            let later =
                (0..NEWCOMERS).filter(|n| send(&limiter, &format!("203.{}.{}.9", n / 250, n % 250)).is_allowed());
            assert!(later.count() + 15 > NEWCOMERS);
        }
    }
}

/// A flood without addresses has buckets of its own.
#[test]
fn a_flood_of_made_up_names_denies_no_newcomer_with_an_address() {
    let (limiter, _) = limiter(true);
    (0..FLOOD).for_each(|number| drop(send(&limiter, &format!("made up {number}"))));
    assert!(send(&limiter, "made up").checks()[0].is_overflowed());
    // Only newcomers among themselves share buckets.
    let served = served_newcomers(&limiter);
    assert!(served + 10 > NEWCOMERS, "{served} of {NEWCOMERS}");
}

/// Without addresses, a newcomer cannot be told from the flood. It gets the same share: the buckets admit three requests each.
#[test]
fn newcomers_without_an_address_get_the_same_share_as_the_flood() {
    let (limiter, _) = limiter(true);
    (0..FLOOD).for_each(|number| drop(send(&limiter, &address_of_flood(number, 4))));
    let (mut served, mut newcomers) = (0, 0);
    for number in 0..10 * BUCKETS {
        drop(send(&limiter, &format!("made up {number}")));
        if number % 10 == 0 {
            let decision = send(&limiter, &format!("newcomer {number}"));
            assert!(is_overflowed(&decision));
            newcomers += 1;
            served += u32::from(decision.is_allowed());
        }
    }
    // All together ask for eleven requests of each bucket, which has three: 27 %.
    assert!(served * 100 > newcomers * 15, "{served} of {newcomers}");
}

/// A flood is forgotten as fast as it came: each newcomer removes more expired keys than it adds.
#[test]
fn after_a_flood_has_expired_every_newcomer_has_a_limit_of_its_own() {
    for anonymous in [true, false] {
        let (limiter, clock) = limiter(anonymous);
        (0..FLOOD).for_each(|number| drop(send(&limiter, &address_of_flood(number, 4))));
        assert!(limiter.store().overflowed() > 0);
        // A request of three comes back in twenty minutes.
        clock.advance(HOUR / 3 + Duration::from_secs(3));
        let before = limiter.store().overflowed();
        for number in 0..NEWCOMERS {
            let address = format!("198.18.{}.{}", number / 250, number % 250);
            let left = [0; 3].map(|_| send(&limiter, &address).remaining());
            assert_eq!(left, [Some(2), Some(1), Some(0)], "{number}");
        }
        assert_eq!(limiter.store().overflowed(), before);
    }
}

/// Of a million honest addresses, a store for a million keys sends a quarter to overflow buckets. With more room, none.
#[test]
fn a_store_with_room_has_no_overflow() {
    let honest = MAX_KEYS / 2;
    let (limiter, _) = limiter(true);
    for number in 0..honest {
        let decision = send(&limiter, &format!("10.{}.{}.9", number / 250, number % 250));
        assert!(decision.is_allowed() && !is_overflowed(&decision));
    }
    assert_eq!((limiter.store().keys(), limiter.store().overflowed()), (honest, 0));
}

/// Slots have owners, so those in shared buckets can be renewed and released, too.
#[test]
fn slots_of_newcomers_are_held_renewed_and_released_in_overflow_buckets() {
    const LEASE: Duration = Duration::from_secs(30);
    let clock = ManualClock::default();
    let rules = ["exports", "jobs"].map(|rule| {
        let rule = Rule::new(rule, Limit::concurrency(2, LEASE).unwrap()).with_per(["ip"]);
        rule.with_limit("long", Limit::concurrency(9, 2 * LEASE).unwrap())
    });
    let store = MemoryStore::new().with_max_keys(4).with_clock(clock.clone());
    let limiter = Limiter::new(RuleSet::new(rules).unwrap(), store);
    let of = |ip: &'static str| Request::new("").with_attribute("ip", ip);
    let slots = |ip: &'static str| {
        let peek = limiter.plans().check_now(&limiter.plan(&of(ip)).with_peek());
        let remaining: Vec<u64> = peek.checks().iter().map(|check| check.outcome().remaining).collect();
        remaining
    };
    let _full = limiter.check_now(&of("192.0.2.1"));
    let mut newcomer = limiter.check_now(&of("198.51.100.7"));
    assert!(newcomer.checks().iter().all(tidegate::spi::CheckResult::is_overflowed));
    assert_eq!(slots("198.51.100.7"), [1, 8, 1, 8]);
    let mut lease = newcomer.take_grant();
    for _ in 0..4 {
        clock.advance(LEASE / 2);
        ready(limiter.renew(&lease, Retake::No)).unwrap();
        let _full = limiter.check_now(&of("192.0.2.1"));
    }
    assert_eq!(slots("198.51.100.7"), [1, 8, 1, 8]);
    ready(limiter.end(&mut lease, &Ending::Release)).unwrap();
    assert_eq!(slots("198.51.100.7"), [2, 9, 2, 9]);
    // A refund of the whole request releases them, too.
    ready(limiter.end(&mut limiter.check_now(&of("198.51.100.7")).take_grant(), &Ending::Refund)).unwrap();
    assert_eq!(slots("198.51.100.7"), [2, 9, 2, 9]);
}

/// A reservation of cost 0 makes a hold, which needs a key: also in a full store, no more keys than its maximum.
#[test]
fn reservations_of_newcomers_are_held_and_refused_in_overflow_buckets() {
    fn of(ip: &str, cost: u64) -> Request<'_> {
        Request::new("").with_attribute("ip", ip).with_cost(cost)
    }
    let limit = Limit::token_bucket(100, Rate::per_hour(1).unwrap()).unwrap();
    let rule = Rule::new("tokens", limit).with_per(["ip"]);
    let store = MemoryStore::new().with_max_keys(4).with_clock(ManualClock::default());
    let limiter = Limiter::new(RuleSet::new([rule]).unwrap(), store);
    for number in 0..8 {
        let _full = limiter.check_now(&of(&format!("192.0.2.{number}"), 1));
    }
    let keys = limiter.store().keys();
    for number in 0..100 {
        let decision = ready(limiter.reserve(&of(&format!("198.51.100.{number}"), 0), None)).unwrap();
        assert!(decision.is_allowed() && is_overflowed(&decision), "{number}");
    }
    assert_eq!(limiter.store().keys(), keys);
    let newcomer = |cost| of("203.0.113.9", cost);
    let mut decision = ready(limiter.reserve(&newcomer(60), Some("k"))).unwrap();
    assert!(decision.is_allowed() && is_overflowed(&decision));
    let other_cost = ready(limiter.reserve(&newcomer(50), Some("k")));
    assert!(matches!(other_cost, Err(GrantError::KeyReused)), "{other_cost:?}");
    ready(limiter.end(&mut decision.take_grant(), &Ending::Commit(10.into()))).unwrap();
    let ended = ready(limiter.reserve(&newcomer(60), Some("k")));
    assert!(matches!(ended, Err(GrantError::AlreadyEnded)), "{ended:?}");
}

/// The result of a future that does not wait.
fn ready<T>(future: impl Future<Output = T>) -> T {
    match std::pin::pin!(future).poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(result) => result,
        std::task::Poll::Pending => panic!("the future is pending"),
    }
}
