//! A flood of made-up subjects while the store fails: the memory of the fallback is bounded, and a bystander keeps their limit.

use tidegate::rules::AnonymousBounds;
use tidegate::spi::DEFAULT_MAX_KEYS;
use tidegate::{Limiter, ManualClock, MemoryStore, OnFailure, Request, Rule, RuleSet};

use crate::fallback::store::{SwitchableStore, bucket, passed, poll_once};

/// Keys in the memory of the fallback. Smaller than [`DEFAULT_MAX_KEYS`], so that the test is short; the bounds are proportional.
const MAX_KEYS: usize = DEFAULT_MAX_KEYS / 50;

/// The networks of ten times as many addresses as fit. There are an overflow bucket for each sixteen keys, 1,250.
const FLOOD_NETWORKS: usize = (10 * MAX_KEYS).div_ceil(256);

/// A limiter without its store that counts addresses, which anyone can make up, and authenticated users.
fn limiter_without_store(clock: &ManualClock, policy: OnFailure) -> Limiter<SwitchableStore> {
    let by_address = Rule::new("address", bucket(3)).with_action("web").with_per(["ip"]).with_on_failure(policy);
    let by_user = Rule::new("user", bucket(3)).with_action("api").with_per(["user"]).with_on_failure(policy);
    let rules = [by_address.with_anonymous(AnonymousBounds::default()), by_user];
    let memory = MemoryStore::new().with_max_keys(MAX_KEYS).with_clock(clock.clone());
    Limiter::new(RuleSet::new(rules).unwrap(), SwitchableStore::failing(clock)).with_fallback_store(memory)
}

fn address(limiter: &Limiter<SwitchableStore>, ip: &str, times: usize) -> usize {
    passed(limiter, &Request::new("web").with_attribute("ip", ip), times).unwrap()
}

fn user(limiter: &Limiter<SwitchableStore>, user: &str, times: usize) -> usize {
    passed(limiter, &Request::new("api").with_attribute("user", user), times).unwrap()
}

/// Sends one request from each of ten times as many addresses as fit, and returns how many pass.
fn flood(limiter: &Limiter<SwitchableStore>) -> usize {
    let passes = |n: &usize| {
        let ip = format!("10.{}.{}.{}", n >> 16, (n >> 8) & 255, n & 255);
        poll_once(limiter.check(&Request::new("web").with_attribute("ip", &ip))).unwrap().is_allowed()
    };
    (0..10 * MAX_KEYS).filter(passes).count()
}

#[test]
fn made_up_addresses_do_not_push_a_bystander_out_of_the_memory_of_the_fallback() {
    for policy in [OnFailure::Local, OnFailure::Share] {
        let clock = ManualClock::default();
        let limiter = limiter_without_store(&clock, policy);
        assert_eq!((address(&limiter, "192.0.2.1", 2), user(&limiter, "ann", 3)), (2, 3));
        let passed = flood(&limiter);
        // Three quarters of the keys, each with one request of a limit of three, and then the overflow buckets of its networks.
        assert!(passed <= MAX_KEYS * 3 / 4 + 3 * FLOOD_NETWORKS, "{policy:?}: {passed}");
        assert_eq!(
            address(&limiter, "192.0.2.1", 9),
            1,
            "{policy:?}: a known address keeps its state, spent and unspent"
        );
        assert_eq!(user(&limiter, "ann", 9), 0, "{policy:?}: a user's spent limit stays spent");
        for new in ["bob", "cleo", "dan"] {
            assert_eq!(user(&limiter, new, 9), 3, "{policy:?}: a new user has a limit of their own");
        }
        assert_eq!(
            address(&limiter, "10.3.13.200", 9),
            0,
            "{policy:?}: addresses of its networks share what the flood has used"
        );
        // The flood comes from half as many networks as there are buckets, so about half of the other networks share none with it.
        let networks = 0..300;
        let served = networks.filter(|n| address(&limiter, &format!("172.16.{}.{}", n % 250, n / 250), 1) == 1).count();
        assert!(served > 100, "{policy:?}: {served}");
    }
}
