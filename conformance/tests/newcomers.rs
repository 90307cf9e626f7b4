//! Floods of subjects on a shared store: what legitimate newcomers get during and after them, on one server and in a cluster.
//!
//! Past the bound of a limit, newcomers share 64 overflow buckets in each of 1,024 partitions (more if the bound is large), each with
//! the limit of one subject. A flood from k networks /48 uses up at most one bucket of each partition for each network, so that a
//! newcomer of another network is denied with a probability of at most k / 64. Networks are hashed with a secret, which is constant
//! here, so that every run gives the same counts.

use std::time::Duration;

use conformance::pure_store::PureStore;
use conformance::server::{KINDS, Kind, Server};
use conformance::suite::{START, decide_all, limits_with_window, long_timeout_options};
use conformance::topology::Cluster;
use tidegate::rules::AnonymousBounds;
use tidegate::spi::{Check, CheckResult, Gate, Network, Newcomer, Plan, Store, Subject, Verdict};
use tidegate::{Clock, Decision, Limit, Limiter, ManualClock, MemoryStore, Rate, Request, Rule, RuleSet, Secret};
use tidegate_redis::{RedisOptions, RedisStore};

type RedisLimiter = Limiter<RedisStore>;

/// The bound, for each kind of subject.
const MAX_SUBJECTS: u64 = 1_000;
const NEWCOMERS: usize = 500;
/// Enough to use up every bucket of a network many times.
const FLOOD: usize = 20_000;
/// Concurrent requests.
const BATCH_SIZE: usize = 500;
const HOUR: Duration = Duration::from_secs(3600);

/// Three requests for each subject that do not come back within an hour.
fn limiter(store: &RedisStore, anonymous: bool) -> RedisLimiter {
    let rule = Rule::new("public", Limit::token_bucket(3, Rate::new(3, HOUR).unwrap()).unwrap()).with_per(["ip"]);
    let rule = if anonymous {
        rule.with_anonymous(AnonymousBounds::new(MAX_SUBJECTS))
    } else {
        rule.with_max_subjects(MAX_SUBJECTS)
    };
    Limiter::new(RuleSet::new([rule]).unwrap(), store.clone()).with_secret(&Secret::new("of the fleet"))
}

/// Sends one request for each subject. Returns how many passed, and how many were decided on an overflow bucket.
async fn send_each(limiter: &RedisLimiter, subjects: impl Iterator<Item = String>) -> (usize, usize) {
    let (subjects, mut sums): (Vec<String>, _) = (subjects.collect(), (0, 0));
    for batch in subjects.chunks(BATCH_SIZE) {
        let request = |subject| limiter.plan(&Request::new("").with_attribute("ip", subject));
        let plans: Vec<_> = batch.iter().map(|subject| request(subject)).collect();
        for verdict in decide_all(limiter.store(), &plans).await {
            let verdict = verdict.unwrap();
            sums.0 += verdict.granted() as usize;
            sums.1 += usize::from(verdict.checks()[0].overflowed);
        }
    }
    sums
}

/// A flood from this many /48 networks.
fn flood(networks: usize) -> impl Iterator<Item = String> {
    (0..FLOOD).map(move |number| format!("2001:db8:{:x}:{:x}::1", number % networks, number / networks))
}

/// Newcomers, each from a network of its own. Each `generation` has others.
fn newcomers(generation: usize) -> impl Iterator<Item = String> {
    (0..NEWCOMERS).map(move |number| format!("{}.{}.{}.7", 20 + generation, number / 250, number % 250))
}

async fn ask(limiter: &RedisLimiter, ip: &str) -> Decision {
    limiter.check(&Request::new("").with_attribute("ip", ip)).await.unwrap()
}

fn overflowed(decision: &Decision) -> bool {
    decision.checks().iter().any(CheckResult::is_overflowed)
}

/// Trap: newcomers shared 1,024 buckets, whatever their network, and 34 requests a second kept those empty: 300 of 300 were denied.
#[tokio::test]
async fn a_flood_from_a_few_networks_denies_a_bounded_part_of_the_newcomers_of_others() {
    for kind in KINDS {
        for (anonymous, networks) in [(true, 1), (true, 4), (false, 4)] {
            let server = Server::start(kind);
            let store = server.store_with(long_timeout_options()).await;
            let case = format!("{kind:?}, anonymous {anonymous}, {networks} networks");
            check_share(&limiter(&store, anonymous), networks, &case).await;
        }
    }
}

#[tokio::test]
async fn the_share_of_newcomers_is_the_same_in_a_cluster() {
    let cluster = Cluster::start(Kind::Redis, 3, false);
    let store = RedisStore::connect_with(&cluster.url(), long_timeout_options()).await.unwrap();
    check_share(&limiter(&store, true), 4, "cluster").await;
}

/// Newcomers during a flood, and after it, while its keys have not expired.
async fn check_share(limiter: &RedisLimiter, networks: usize, case: &str) {
    let (_, shared) = send_each(limiter, flood(networks)).await;
    assert!(shared >= FLOOD - MAX_SUBJECTS as usize - BATCH_SIZE, "{case}: {shared}");
    let most_denied = NEWCOMERS * networks / 64;
    for generation in 0..3 {
        let (served, shared) = send_each(limiter, newcomers(generation)).await;
        println!("{case}: {served} of {NEWCOMERS} newcomers");
        assert_eq!(shared, NEWCOMERS, "{case}");
        // Twice as many by chance. The first generations have used some of what their buckets admit.
        assert!(served + 2 * most_denied + 4 >= NEWCOMERS, "{case}: {served}");
        // The flood continues.
        send_each(limiter, flood(networks).take(2_000)).await;
    }
    let (neighbours, _) = send_each(limiter, (0..200).map(|number| format!("2001:db8:0:ff{number:02x}::1"))).await;
    assert!(neighbours < 100, "{case}: the networks of the flood have used up most of their buckets: {neighbours}");
}

/// Unlike addresses, names that a client makes up are as many as it likes. They have buckets of their own.
#[tokio::test]
async fn a_flood_of_made_up_names_denies_no_newcomer_with_an_address() {
    for kind in KINDS {
        let server = Server::start(kind);
        let limiter = limiter(&server.store_with(long_timeout_options()).await, true);
        send_each(&limiter, (0..FLOOD).map(|number| format!("made up {number}"))).await;
        let (served, shared) = send_each(&limiter, newcomers(0)).await;
        assert_eq!((served, shared), (NEWCOMERS, NEWCOMERS), "{kind:?}");
    }
}

/// Otherwise a flood of addresses would lock out new API keys, or the other way round.
#[tokio::test]
async fn authenticated_and_unauthenticated_floods_do_not_affect_each_other() {
    let server = Server::start(Kind::Redis);
    let store = server.store_with(long_timeout_options()).await;
    let (anonymous, authenticated) = (limiter(&store, true), limiter(&store, false));
    send_each(&anonymous, (0..FLOOD).map(|number| format!("made up {number}"))).await;
    let (served, shared) = send_each(&authenticated, (0..500).map(|number| format!("key {number}"))).await;
    assert_eq!((served, shared), (500, 0), "they have keys of their own");
    let stats = (store.anonymous_stats().remove(0), store.authenticated_stats().remove(0));
    assert_eq!((stats.0.overflowing, stats.1.overflowing, stats.1.keys), (true, false, 500));
    send_each(&authenticated, (0..FLOOD).map(|number| format!("more {number}"))).await;
    assert!(store.authenticated_stats()[0].overflowing);
    assert!(overflowed(&ask(&authenticated, "newcomer").await));
    assert!(!overflowed(&ask(&authenticated, "key 7").await), "one that the store knows");
}

/// A flood is forgotten when its keys have expired, by the clock of the server.
#[tokio::test]
async fn after_a_flood_has_expired_every_newcomer_has_a_limit_of_its_own() {
    for kind in KINDS {
        for anonymous in [true, false] {
            let (server, clock) = (Server::start(kind), ManualClock::starting_at(START));
            let store = server.store_with(long_timeout_options().with_clock(clock.clone())).await;
            let limiter = limiter(&store, anonymous);
            send_each(&limiter, flood(4)).await;
            assert!(overflowed(&ask(&limiter, "198.18.0.1").await), "{kind:?} {anonymous}");
            // A request of three comes back in twenty minutes; then the margin for clocks, and a slice of the count.
            clock.advance(HOUR / 3 + Duration::from_secs(10));
            let _ = ask(&limiter, "198.18.0.2").await;
            let (served, shared) = send_each(&limiter, newcomers(0)).await;
            assert_eq!((served, shared), (NEWCOMERS, 0), "{kind:?} {anonymous}");
        }
    }
}

/// A newcomer without an address shares its bucket with others in the next window, so nobody is denied for long by chance.
#[tokio::test]
async fn a_newcomer_without_an_address_moves_to_another_bucket_with_the_next_window() {
    let (server, clock) = (Server::start(Kind::Redis), ManualClock::starting_at(START));
    let options: RedisOptions = long_timeout_options().with_clock(clock.clone());
    let store = server.store_with(options).await;
    // Known subjects keep the limit full for longer than a window.
    let limit = Limit::fixed_window(3, Duration::from_secs(60)).unwrap();
    let rule = Rule::new("public", limit).with_per(["ip"]).with_anonymous(AnonymousBounds::new(1));
    let limiter = Limiter::new(RuleSet::new([rule]).unwrap(), store.clone());
    let mut buckets = std::collections::HashSet::new();
    let mut connection = server.connection();
    for _ in 0..10 {
        for _ in 0..2 {
            let _ = ask(&limiter, "known").await;
        }
        assert!(overflowed(&ask(&limiter, "newcomer").await));
        let names: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*+*").query(&mut connection).unwrap();
        buckets.extend(names);
        clock.advance(Duration::from_secs(60));
    }
    assert!(buckets.len() > 5, "{}", buckets.len());
}

/// Every kind of newcomer, in every kind of limit: each is decided exactly as a subject that is its bucket, also when buckets change with
/// time and several checks of a plan overflow.
#[tokio::test]
async fn a_bucket_decides_exactly_like_one_subject() {
    const WINDOW: Duration = Duration::from_secs(60);
    for limit in limits_with_window(5, WINDOW) {
        let clock = ManualClock::starting_at(START);
        let memory = MemoryStore::new().with_max_keys(2).with_clock(clock.clone());
        agree(&memory, &clock, limit, 1, &[true]).await;
        for kind in KINDS {
            let (server, clock) = (Server::start(kind), ManualClock::starting_at(START));
            let store = server.store_with(long_timeout_options().with_clock(clock.clone())).await;
            agree(&store, &clock, limit, 64, &[true, false]).await;
        }
    }
}

/// Compares the verdicts on newcomers with those of a model in which their bucket is a subject. The store has `buckets` in a partition, and
/// room for one subject of each kind in `known`, whether it is anonymous.
async fn agree(store: &impl Store, clock: &ManualClock, limit: Limit, buckets: u32, known: &[bool]) {
    let model = PureStore::new(clock.clone());
    let gate = |rule: &str| {
        let rule = Rule::new(rule, limit).with_per(["subject"]).with_anonymous(AnonymousBounds::new(1));
        Gate::new(rule.with_max_subjects(1), "", limit)
    };
    let gates = ["one", "two"].map(gate);
    let (mut random, mut overflowed) = (fastrand::Rng::with_seed(7), 0);
    for step in 0..600 {
        clock.advance(Duration::from_millis(random.u64(..20_000)));
        for (gate, anonymous) in gates.iter().flat_map(|gate| known.iter().map(move |anonymous| (gate, *anonymous))) {
            let subject = Subject::from_hash(1_000_000 + u128::from(anonymous));
            let plan = Plan::new([Check::new(gate, subject, 1).with_anonymous(anonymous)]).unwrap();
            assert_eq!(store.decide(&plan).await.unwrap(), model.decide(&plan).await.unwrap(), "{limit:?} {step}");
        }
        let mut check = |gate| {
            let check = Check::new(gate, Subject::from_hash(random.u128(..300)), random.u64(1..3));
            let network = random.bool().then(|| Network::from_hash(random.u32(1..301)));
            check.with_anonymous(random.bool()).with_network(network)
        };
        let checks: Vec<Check<'_>> = gates.iter().take(1 + step % 2).map(&mut check).collect();
        let by_bucket = checks.iter().map(|check| {
            let number = Newcomer::from_check(check).bucket(buckets, 0, clock.now());
            Check::new(check.gate(), Subject::from_hash((1 << 64) + u128::from(number)), check.cost())
        });
        let expected = model.decide(&Plan::new(by_bucket).unwrap()).await.unwrap();
        let verdict = store.decide(&Plan::new(checks).unwrap()).await.unwrap();
        overflowed += verdict.checks().iter().filter(|check| check.overflowed).count();
        assert_eq!(without_overflow_marks(verdict), expected, "{limit:?} {step}");
    }
    assert_eq!(overflowed, 900, "{limit:?}");
}

fn without_overflow_marks(mut verdict: Verdict) -> Verdict {
    verdict.checks_mut().iter_mut().for_each(|check| check.overflowed = false);
    verdict
}
