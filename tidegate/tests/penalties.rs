//! Progressive penalties in virtual time: whom they block, for how long, and whom never.

use std::time::Duration;

use proptest::prelude::*;
use tidegate::limits::Penalty;
use tidegate::rules::AnonymousBounds;
use tidegate::{
    Decision, Ending, Limit, Limiter, ManualClock, MemoryStore, Rate, Request, Rule, RuleMode, RuleSet, Timestamp,
};

const MINUTE: Duration = Duration::from_secs(60);

fn clock() -> ManualClock {
    ManualClock::starting_at(Timestamp::from_micros(1_790_000_000_000_000))
}

/// Three strikes, then a minute, two minutes and so on, up to an hour.
fn penalty() -> Penalty {
    Penalty::new(3, MINUTE, 2, 60 * MINUTE).unwrap()
}

/// Two attempts in ten seconds for an address.
fn by_address() -> Rule {
    let limit = Limit::sliding_log(2, Duration::from_secs(10)).unwrap();
    Rule::new("login-ip", limit).with_per(["ip"]).with_security().with_penalty(penalty())
}

fn limiter(rules: impl IntoIterator<Item = Rule>, clock: &ManualClock) -> Limiter<MemoryStore> {
    Limiter::new(RuleSet::new(rules).unwrap(), MemoryStore::new().with_clock(clock.clone()))
}

fn attempt(limiter: &Limiter<MemoryStore>, ip: &str, account: &str) -> Decision {
    limiter.check_now(&Request::new("login").with_attribute("ip", ip).with_attribute("account", account))
}

fn is_allowed(limiter: &Limiter<MemoryStore>, ip: &str, account: &str) -> bool {
    attempt(limiter, ip, account).is_allowed()
}

/// Sends attempts until one begins a block.
fn provoke_block(limiter: &Limiter<MemoryStore>, ip: &str) {
    let blocks = |decision: Decision| decision.retry_after() >= Some(MINUTE);
    assert!((0..10).any(|_| blocks(attempt(limiter, ip, "ann"))));
}

#[test]
fn an_address_that_keeps_trying_gets_far_fewer_attempts_than_the_limit_admits() {
    let (with, without) = (clock(), clock());
    let punished = limiter([by_address()], &with);
    let limit = Limit::sliding_log(2, Duration::from_secs(10)).unwrap();
    let limited = limiter([Rule::new("login-ip", limit).with_per(["ip"])], &without);
    let attempts_in_a_day = |limiter: &Limiter<MemoryStore>, clock: &ManualClock| {
        let attempts = (0..86_400).filter(|_| {
            clock.advance(Duration::from_secs(1));
            is_allowed(limiter, "192.0.2.7", "ann")
        });
        attempts.count()
    };
    assert_eq!(attempts_in_a_day(&limited, &without), 17_280);
    // Two attempts and a strike between blocks, of which 23 last an hour.
    assert!(attempts_in_a_day(&punished, &with) < 80);
}

#[test]
fn a_denial_by_another_rule_is_no_strike() {
    let clock = clock();
    let account = Rule::new("login-account", Limit::sliding_log(1, MINUTE).unwrap()).with_per(["account"]);
    let limiter = limiter([account, by_address()], &clock);
    assert!(is_allowed(&limiter, "192.0.2.7", "ann"));
    assert!((0..100).all(|_| !is_allowed(&limiter, "192.0.2.7", "ann")));
    assert!(is_allowed(&limiter, "192.0.2.7", "bob"));
}

#[test]
fn an_account_that_an_attacker_names_is_not_blocked_elsewhere() {
    let clock = clock();
    let limiter = limiter([by_address()], &clock);
    provoke_block(&limiter, "192.0.2.7");
    assert!(!is_allowed(&limiter, "192.0.2.7", "victim"));
    assert!(is_allowed(&limiter, "198.51.100.1", "victim"));
}

#[test]
fn several_limits_that_deny_one_request_are_one_strike() {
    let clock = clock();
    let longer = Duration::from_secs(20);
    let rule = by_address().with_limit("longer", Limit::sliding_log(2, longer).unwrap());
    let limiter = limiter([rule], &clock);
    let retries = [(); 5].map(|()| attempt(&limiter, "192.0.2.7", "ann").retry_after());
    assert_eq!(retries, [None, None, Some(longer), Some(longer), Some(MINUTE)]);
}

#[test]
fn a_peek_neither_strikes_nor_shows_more_than_a_request() {
    let clock = clock();
    let limiter = limiter([by_address()], &clock);
    let request = Request::new("login").with_attribute("ip", "192.0.2.7");
    let peek = |cost| {
        let plan = limiter.plan(&request.clone().with_cost(cost)).with_peek();
        Decision::new(&plan, &limiter.store().decide_now(&plan))
    };
    assert!((0..100).all(|_| !peek(3).is_allowed()));
    assert!(peek(2).is_allowed());
    provoke_block(&limiter, "192.0.2.7");
    assert_eq!(peek(0).retry_after(), Some(MINUTE));
    clock.advance(MINUTE);
    assert!(peek(0).is_allowed());
}

#[test]
fn a_request_without_a_cost_passes_unless_the_subject_is_blocked() {
    let clock = clock();
    let limiter = limiter([by_address()], &clock);
    let free = Request::new("login").with_attribute("ip", "192.0.2.7").with_cost(0);
    assert!((0..100).all(|_| limiter.check_now(&free).is_allowed()));
    assert_eq!(limiter.store().keys(), 0);
    provoke_block(&limiter, "192.0.2.7");
    assert!(!limiter.check_now(&free).is_allowed());
}

#[test]
fn a_shadow_rule_blocks_nobody_and_reports_whom_it_would_block() {
    let clock = clock();
    let limiter = limiter([by_address().with_mode(RuleMode::Shadow)], &clock);
    for _ in 0..5 {
        assert!(is_allowed(&limiter, "192.0.2.7", "ann"));
    }
    // The limit would admit again, the block would not.
    clock.advance(Duration::from_secs(30));
    let decision = attempt(&limiter, "192.0.2.7", "ann");
    assert!(decision.is_allowed());
    assert_eq!(decision.shadow_would_reject().collect::<Vec<_>>(), ["login-ip"]);
    clock.advance(Duration::from_secs(30));
    assert_eq!(attempt(&limiter, "192.0.2.7", "ann").shadow_would_reject().count(), 0);
}

/// Otherwise an attacker would wait ten seconds in place of an hour.
#[test]
fn forgetting_idle_addresses_does_not_end_a_block() {
    let clock = clock();
    let bounds = AnonymousBounds::default().with_forget_after(Duration::from_secs(10));
    let limiter = limiter([by_address().with_anonymous(bounds)], &clock);
    provoke_block(&limiter, "192.0.2.7");
    clock.advance(Duration::from_secs(59));
    assert!(!is_allowed(&limiter, "192.0.2.7", "ann"));
    clock.advance(Duration::from_secs(1));
    assert!(is_allowed(&limiter, "192.0.2.7", "ann"));
}

/// A block of an overflow bucket would hit all who share it.
#[test]
fn newcomers_in_a_full_store_are_limited_together_but_never_blocked() {
    let clock = clock();
    let limit = Limit::token_bucket(2, Rate::per_second(1).unwrap()).unwrap();
    let rule = Rule::new("login-ip", limit).with_per(["ip"]).with_security().with_penalty(penalty());
    let store = MemoryStore::new().with_max_keys(1).with_clock(clock.clone());
    let limiter = Limiter::new(RuleSet::new([rule]).unwrap(), store);
    assert!(is_allowed(&limiter, "192.0.2.1", "ann"));
    // All in one network, and so in one overflow bucket.
    for address in 2..200 {
        let decision = attempt(&limiter, &format!("192.0.2.{address}"), "ann");
        assert!(decision.retry_after().is_none_or(|retry| retry <= Duration::from_secs(1)), "{decision:?}");
    }
    assert_eq!(limiter.store().keys(), 2, "the first address, and the overflow bucket");
    clock.advance(Duration::from_secs(1));
    assert!(is_allowed(&limiter, "192.0.2.200", "ann"));
}

#[test]
fn a_refund_gives_back_the_cost_but_no_strike() {
    let clock = clock();
    let limiter = limiter([by_address()], &clock);
    let mut first = attempt(&limiter, "192.0.2.7", "ann");
    let mut second = attempt(&limiter, "192.0.2.7", "ann");
    assert!(!is_allowed(&limiter, "192.0.2.7", "ann") && !is_allowed(&limiter, "192.0.2.7", "ann"));
    limiter.spawn_end(first.take_grant(), &Ending::Refund);
    limiter.spawn_end(second.take_grant(), &Ending::Refund);
    assert!(is_allowed(&limiter, "192.0.2.7", "ann") && is_allowed(&limiter, "192.0.2.7", "ann"));
    assert_eq!(attempt(&limiter, "192.0.2.7", "ann").retry_after(), Some(MINUTE), "the third strike");
}

#[test]
fn only_security_rules_that_count_by_a_subject_of_their_own_may_have_a_penalty() {
    let rule = || Rule::new("r", Limit::sliding_log(2, MINUTE).unwrap()).with_penalty(penalty());
    let problem = |rule: Rule| RuleSet::new([rule]).unwrap_err().to_string();
    assert!(problem(rule().with_per(["ip"])).contains("security"));
    assert!(problem(rule().with_security()).contains("counts all requests together"));
    assert!(problem(rule().with_security().with_per(["ip"]).with_budget("b")).contains("budget"));
    assert!(problem(Rule::new("r", Limit::Penalty(penalty()))).contains("not a limit by itself"));
    let slots = Rule::new("r", Limit::concurrency(2, MINUTE).unwrap()).with_security().with_per(["ip"]);
    assert!(problem(slots.with_penalty(penalty())).contains("a rule of its own"));
    assert!(RuleSet::new([rule().with_security().with_per(["ip"])]).is_ok());
}

/// Callers that wait their turn ask the store again and again, but nobody was told no.
#[test]
fn a_caller_that_waits_is_not_struck() {
    let clock = clock();
    let limiter = limiter([by_address()], &clock);
    let request = Request::new("login").with_attribute("ip", "192.0.2.7").with_attribute("account", "ann");
    while is_allowed(&limiter, "192.0.2.7", "ann") {}
    let strikes = |limiter: &Limiter<MemoryStore>| {
        let peeked = limiter.plans().check_now(&limiter.plan(&request).with_peek());
        peeked.checks()[1].outcome().reset_after
    };
    let before = strikes(&limiter);
    for _ in 0..10 {
        let mut waiting = std::pin::pin!(limiter.acquire(&request, 10 * MINUTE, &clock));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let _ = waiting.as_mut().poll(&mut context);
    }
    assert_eq!(strikes(&limiter), before);
}

proptest! {
    /// A client that is alone under its address and waits as long as it is told is never denied twice in a row.
    #[test]
    fn a_client_that_waits_as_long_as_it_is_told_is_admitted(pauses in prop::collection::vec(0..20_000_u64, 1..200)) {
        let clock = clock();
        let limiter = limiter([by_address()], &clock);
        for pause in pauses {
            clock.advance(Duration::from_millis(pause));
            let decision = attempt(&limiter, "192.0.2.7", "ann");
            if let Some(retry) = decision.retry_after() {
                clock.advance(retry);
                prop_assert!(is_allowed(&limiter, "192.0.2.7", "ann"));
            }
        }
    }

    /// Whatever is sent and whenever: nothing is admitted from a strike that begins a block until the end of the block, and a retry at
    /// the time that a denial names passes, if nothing else is sent.
    #[test]
    fn a_block_ends_when_its_first_denial_says(
        steps in prop::collection::vec((0..100_000_u64, 0..4_u64), 1..300),
    ) {
        let clock = clock();
        let limiter = limiter([by_address()], &clock);
        let mut blocked_until = None;
        for (pause, cost) in steps {
            clock.advance(Duration::from_millis(pause));
            let now = limiter.store().now();
            let request = Request::new("login").with_attribute("ip", "192.0.2.7").with_cost(cost);
            let decision = limiter.check_now(&request);
            let is_blocked = blocked_until.is_some_and(|end| now < end);
            prop_assert!(!is_blocked || !decision.is_allowed());
            let penalty = &decision.checks()[1];
            if let Some(left) = penalty.outcome().retry_after {
                let end = now.plus(left);
                prop_assert!(!is_blocked || blocked_until == Some(end));
                blocked_until = Some(end);
            }
        }
        if let Some(end) = blocked_until {
            clock.set(end);
            let free = Request::new("login").with_attribute("ip", "192.0.2.7").with_cost(0);
            prop_assert!(limiter.check_now(&free).is_allowed());
        }
    }
}

#[test]
fn a_penalty_tells_its_parameters() {
    let minute = Duration::from_secs(60);
    let penalty = Penalty::new(3, minute, 2, 60 * minute).unwrap();
    assert_eq!((penalty.after(), penalty.factor()), (3, 2));
    assert_eq!((penalty.block(), penalty.max()), (minute, 60 * minute));
}
