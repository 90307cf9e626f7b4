//! The memory store: its bound, its removal of expired keys, and its overflow buckets.

use std::time::Duration;

use tidegate::rules::AnonymousBounds;
use tidegate::spi::{Check, Gate, Plan, Subject};
use tidegate::{Limit, Limiter, ManualClock, MemoryStore, Rate, Request, Rule, RuleSet, Timestamp};

/// A limiter of `capacity` per user that does not refill during the test, on a store for `max_keys`.
fn limiter(capacity: u64, max_keys: usize) -> (Limiter<MemoryStore>, ManualClock) {
    let clock = ManualClock::starting_at(Timestamp::from_micros(1_790_000_000_000_000));
    let limit = Limit::token_bucket(capacity, Rate::per_hour(1).unwrap()).unwrap();
    let rules = RuleSet::new([Rule::new("api", limit).with_per(["user"])]).unwrap();
    (Limiter::new(rules, MemoryStore::new().with_max_keys(max_keys).with_clock(clock.clone())), clock)
}

fn passes(limiter: &Limiter<MemoryStore>, user: &str) -> bool {
    limiter.check_now(&Request::new("").with_attribute("user", user)).is_allowed()
}

#[test]
fn new_subjects_of_a_full_store_share_one_overflow_bucket() {
    let (limiter, _) = limiter(3, 4);
    for user in ["a", "b", "c", "d"] {
        assert!(passes(&limiter, user));
    }
    assert_eq!(limiter.store().overflowed(), 0);
    // All new subjects together get three units.
    let admitted: Vec<bool> = ["e", "f", "g", "h", "i"].iter().map(|user| passes(&limiter, user)).collect();
    assert_eq!(admitted, [true, true, true, false, false]);
    assert_eq!(limiter.store().overflowed(), 5);
    assert_eq!(limiter.store().keys(), 5, "four subjects and one overflow bucket");
    // Subjects with a key are not affected.
    assert_eq!([passes(&limiter, "a"), passes(&limiter, "a"), passes(&limiter, "a")], [true, true, false]);
}

#[test]
fn all_shards_share_one_overflow_bucket_for_each_sixteen_keys() {
    const BUCKETS: usize = 4096 / 16;
    let (limiter, _) = limiter(10, 4096);
    let allowed = (0..20_000).filter(|user| passes(&limiter, &user.to_string())).count();
    let own = limiter.store().keys() - BUCKETS;
    assert!(own <= 4096);
    assert_eq!(allowed, own + 10 * BUCKETS);
    assert_eq!(limiter.store().overflowed(), 20_000 - own as u64);
}

/// Trap: the shard came from bits of a hash that everybody can compute, and a thousand chosen subjects filled one.
#[test]
fn chosen_subjects_do_not_fill_one_shard() {
    let store = MemoryStore::new();
    let gate = Gate::for_rule("api", Limit::token_bucket(3, Rate::per_hour(1).unwrap()).unwrap());
    // Their highest bits are the same.
    for number in 0..5_000 {
        let check = Check::new(&gate, Subject::from_hash(number), 1).with_anonymous(true);
        assert_eq!(store.decide_now(&Plan::new([check]).unwrap()).granted(), 1);
    }
    assert_eq!((store.keys(), store.overflowed()), (5_000, 0));
}

#[test]
fn a_state_that_still_counts_is_never_dropped_for_a_new_key() {
    let (limiter, clock) = limiter(1, 64);
    let early: Vec<String> = (0..64).map(|user| user.to_string()).collect();
    assert!(early.iter().all(|user| passes(&limiter, user)));
    for flood in 0..10_000 {
        passes(&limiter, &format!("flood {flood}"));
    }
    clock.advance(Duration::from_secs(3599));
    assert!(!early.iter().any(|user| passes(&limiter, user)), "no limit has refilled");
}

#[test]
fn expired_keys_are_removed_as_the_store_is_used() {
    let (limiter, clock) = limiter(1, 100_000);
    for user in 0..50_000 {
        assert!(passes(&limiter, &format!("old {user}")));
    }
    clock.advance(Duration::from_secs(3600 + 3));
    for user in 0..50_000 {
        assert!(passes(&limiter, &format!("new {user}")));
    }
    let keys = limiter.store().keys();
    assert!((50_000..65_000).contains(&keys), "{keys} keys: most of the old ones are gone");
    assert_eq!(limiter.store().overflowed(), 0);
}

#[test]
fn a_full_store_accepts_new_keys_once_old_ones_expire() {
    let (limiter, clock) = limiter(1, 16);
    (0..16).for_each(|user| assert!(passes(&limiter, &user.to_string())));
    assert!(passes(&limiter, "newcomer"), "from the only overflow bucket");
    assert!(!passes(&limiter, "another"), "which is empty now");
    clock.advance(Duration::from_secs(3600 + 3));
    (0..16).for_each(|user| assert!(passes(&limiter, &format!("late {user}"))));
    assert_eq!(limiter.store().overflowed(), 2);
}

#[test]
fn peeks_and_denied_or_free_requests_create_no_keys() {
    let (limiter, _) = limiter(1, 64);
    let request = Request::new("").with_attribute("user", "ann");
    limiter.store().decide_now(&limiter.plan(&request).with_peek());
    assert!(limiter.check_now(&request.clone().with_cost(0)).is_allowed());
    assert!(!limiter.check_now(&request.with_cost(2)).is_allowed());
    assert_eq!(limiter.store().keys(), 0);
}

/// Regression: each new key of a plan was checked against the same free place.
#[test]
fn a_plan_of_many_new_keys_does_not_exceed_the_maximum() {
    let clock = ManualClock::starting_at(Timestamp::from_micros(1_790_000_000_000_000));
    let limit = Limit::token_bucket(5, Rate::per_hour(1).unwrap()).unwrap();
    let rules = (0..20).map(|rule| Rule::new(format!("rule-{rule}"), limit).with_per(["user"]));
    let limiter = Limiter::new(RuleSet::new(rules).unwrap(), MemoryStore::new().with_max_keys(8).with_clock(clock));
    assert!(passes(&limiter, "ann"));
    assert_eq!(limiter.store().overflowed(), 12);
    assert_eq!(limiter.store().keys(), 8 + 12, "eight of its own, and an overflow bucket for each other rule");
}

/// A plan that adds one key must not remove an expired log that another of its checks depends on.
#[test]
fn a_sweep_does_not_remove_states_of_the_same_plan() {
    let clock = ManualClock::starting_at(Timestamp::from_micros(1_790_000_000_000_000));
    let api = Limit::token_bucket(20, Rate::per_second(10).unwrap()).unwrap();
    let login = Limit::sliding_log(5, Duration::from_secs(10)).unwrap();
    let rules = [Rule::new("api", api).with_per(["user"]), Rule::new("login", login).with_per(["account"])];
    let store = MemoryStore::new().with_max_keys(100).with_clock(clock.clone());
    let limiter = Limiter::new(RuleSet::new(rules).unwrap(), store);
    for user in ["ann", "bob", "cat", "dan"] {
        let request = Request::new("").with_attribute("user", user).with_attribute("account", "a7");
        let decision = limiter.check_now(&request);
        assert_eq!((decision.is_allowed(), decision.remaining()), (true, Some(4)));
        clock.advance(Duration::from_secs(13));
    }
}

/// A limiter with a rule per address, anonymous, and a rule per user, that do not refill during the test.
fn with_anonymous_rule(anonymous: AnonymousBounds, max_keys: usize) -> (Limiter<MemoryStore>, ManualClock) {
    let clock = ManualClock::starting_at(Timestamp::from_micros(1_790_000_000_000_000));
    let limit = Limit::token_bucket(3, Rate::per_hour(1).unwrap()).unwrap();
    let rules = [
        Rule::new("public", limit).with_action("public").with_per(["ip"]).with_anonymous(anonymous),
        Rule::new("api", limit).with_action("api").with_per(["user"]),
    ];
    let store = MemoryStore::new().with_max_keys(max_keys).with_clock(clock.clone());
    (Limiter::new(RuleSet::new(rules).unwrap(), store), clock)
}

/// Unauthenticated subjects fill three quarters of the store, and share buckets from then on.
#[test]
fn a_flood_of_unauthenticated_subjects_leaves_room_for_others() {
    const MAX_KEYS: usize = 10_000;
    const BUCKETS: usize = MAX_KEYS / 16;
    let (limiter, _) = with_anonymous_rule(AnonymousBounds::default(), MAX_KEYS);
    let anonymous = |name: &str| limiter.check_now(&Request::new("public").with_attribute("ip", name));
    assert!(anonymous("ann").is_allowed());
    let mut passed = 0;
    for number in 0..100_000 {
        passed += u64::from(anonymous(&format!("address {number}")).is_allowed());
    }
    let own = limiter.store().keys() - BUCKETS;
    assert!((MAX_KEYS * 7 / 10..=MAX_KEYS * 3 / 4).contains(&own), "{own}");
    assert_eq!(
        passed,
        (own - 1 + 3 * BUCKETS) as u64,
        "one for each key except that of ann, and three from each bucket"
    );
    let decision = anonymous("ann");
    assert_eq!(
        (decision.remaining(), decision.checks()[0].is_overflowed()),
        (Some(1), false),
        "ann has a key of her own"
    );
    assert!(anonymous("carl").checks()[0].is_overflowed());
    for number in 0..MAX_KEYS / 10 {
        let user = format!("user {number}");
        let decision = limiter.check_now(&Request::new("api").with_attribute("user", &user));
        assert!(decision.is_allowed() && !decision.checks()[0].is_overflowed(), "{user}");
        assert_eq!(decision.remaining(), Some(2), "{user}");
    }
}

#[test]
fn only_unauthenticated_subjects_are_forgotten_early() {
    let bounds = AnonymousBounds::default().with_forget_after(Duration::from_secs(60));
    let (limiter, clock) = with_anonymous_rule(bounds, 64);
    let ann = Request::new("public").with_attribute("ip", "ann");
    let user = Request::new("api").with_attribute("user", "bob");
    let left = |request: &Request<'_>| limiter.check_now(request).remaining();
    assert_eq!((left(&ann), left(&user)), (Some(2), Some(2)));
    // A new request restarts the time until the subject is forgotten.
    clock.advance(Duration::from_secs(50));
    assert_eq!(left(&ann), Some(1));
    clock.advance(Duration::from_secs(61));
    assert_eq!(left(&ann), Some(0), "two seconds more, for clocks that step back");
    clock.advance(Duration::from_secs(62));
    assert_eq!((left(&ann), left(&user)), (Some(2), Some(1)));
}

#[test]
fn a_refund_does_not_return_units_to_an_overflow_bucket() {
    let (limiter, _) = with_anonymous_rule(AnonymousBounds::default(), 1);
    let check = |name: &str| limiter.check_now(&Request::new("public").with_attribute("ip", name));
    assert!(check("ann").is_allowed());
    let mut shared = check("bob");
    assert!(shared.checks()[0].is_overflowed());
    let receipt = shared.take_grant();
    assert!(receipt.is_empty());
    assert_eq!(check("carl").remaining(), Some(1));
}
