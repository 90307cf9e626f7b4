//! Giving back cannot be farmed: what is admitted and not given back stays within every limit, whatever a client takes, leaves,
//! refunds and settles.

use std::time::Duration;

use conformance::suite::{AnyStore, StoreFixture, count_allowed, left, on_every_store, one_limit_of_each_kind};
use tidegate::spi::Store;
use tidegate::{Decision, Ending, Grant, Limit, Limiter, Rate, Request, Rule, RuleMode};

const SECOND: Duration = Duration::from_secs(1);

/// Ten tokens, one a second.
fn ten_tokens() -> Limit {
    Limit::token_bucket(10, Rate::per_second(1).unwrap()).unwrap()
}

/// Regression: a receipt stayed good after its tokens had refilled. Thirty receipts of the last 300 seconds admitted 310 units in
/// one instant.
#[tokio::test]
async fn receipts_of_tokens_that_have_refilled_give_nothing_back() {
    on_every_store(async |fixture| {
        let limiter = fixture.limiter(ten_tokens());
        let mut receipts = Vec::new();
        for _ in 0..30 {
            receipts.push(take(&limiter, 10).await.take_grant());
            fixture.clock.advance(10 * SECOND);
        }
        let mut admitted = count_allowed(&limiter, 1, 20).await;
        for mut receipt in receipts {
            limiter.end(&mut receipt, &Ending::Refund).await.unwrap();
            admitted += count_allowed(&limiter, 1, 20).await;
        }
        assert_eq!(admitted, 10);
    })
    .await;
}

/// Regression: the same by settling: 1,900 units of 1,000.
#[tokio::test]
async fn settling_gives_back_no_tokens_that_have_refilled() {
    on_every_store(async |fixture| {
        let limiter = fixture.limiter(Limit::token_bucket(1_000, Rate::per_second(100).unwrap()).unwrap());
        let mut receipts = Vec::new();
        for _ in 0..9 {
            receipts.push(take(&limiter, 100).await.take_grant());
            fixture.clock.advance(SECOND);
        }
        let mut admitted = count_allowed(&limiter, 100, 20).await;
        for mut receipt in receipts {
            limiter.end(&mut receipt, &Ending::Settle(0.into())).await.unwrap();
            admitted += count_allowed(&limiter, 100, 20).await;
        }
        assert_eq!(admitted, 10);
    })
    .await;
}

/// A refund moves later takes forward, so their own tokens have refilled sooner than their receipts say. A client that takes,
/// refunds and takes again would collect receipts that all end late, round by round more of them.
#[tokio::test]
async fn taking_and_refunding_again_does_not_lengthen_receipts() {
    on_every_store(async |fixture| {
        let limiter = fixture.limiter(ten_tokens());
        let mut receipts: Vec<Grant> = Vec::new();
        for round in 0..4 {
            let mut admitted = 0;
            for mut receipt in std::mem::take(&mut receipts) {
                admitted += take_all(&limiter, &mut receipts).await;
                limiter.end(&mut receipt, &Ending::Refund).await.unwrap();
            }
            admitted += take_all(&limiter, &mut receipts).await;
            assert!(admitted <= 10, "{admitted} in one instant of round {round}");
            // Every receipt is exchanged for one of the same cost that ends as late as possible.
            for _ in 0..receipts.len() {
                limiter.end(&mut receipts.remove(0), &Ending::Refund).await.unwrap();
                take_all(&limiter, &mut receipts).await;
            }
            fixture.clock.advance(9 * SECOND);
        }
    })
    .await;
}

/// What is missing goes back, and no more: half of the tokens have refilled after half of the time.
#[tokio::test]
async fn a_late_refund_gives_back_what_is_still_missing() {
    on_every_store(async |fixture| {
        let limiter = fixture.limiter(ten_tokens());
        let mut first = take(&limiter, 4).await;
        let mut second = take(&limiter, 4).await;
        fixture.clock.advance(6 * SECOND);
        assert_eq!(left(&limiter).await, 8);
        // The bucket refills in the order of the takes: the first four tokens, then two of the second take.
        limiter.end(&mut first.take_grant(), &Ending::Refund).await.unwrap();
        assert_eq!(left(&limiter).await, 8);
        let _ = take(&limiter, 8).await;
        limiter.end(&mut second.take_grant(), &Ending::Refund).await.unwrap();
        assert_eq!(left(&limiter).await, 2);
    })
    .await;
}

/// Refunds at once are exact in any order, even with other refunds in between.
#[tokio::test]
async fn refunds_at_once_are_exact_in_any_order() {
    on_every_store(async |fixture| {
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let limiter = fixture.limiter(Limit::token_bucket(10, Rate::per_second(7).unwrap()).unwrap());
            let mut taken = Vec::new();
            for cost in [1, 3, 5] {
                taken.push(Some(take(&limiter, cost).await.take_grant()));
            }
            for index in order {
                limiter.end(&mut taken[index].take().unwrap(), &Ending::Refund).await.unwrap();
            }
            assert_eq!(left(&limiter).await, 10, "{order:?}");
            limiter.forget(&Request::new("")).await.unwrap();
        }
    })
    .await;
}

// === Places in a queue ===

/// A user's own bucket, and a queue that all users share.
fn own_and_queue(fixture: &StoreFixture, own: Limit, queue_mode: RuleMode) -> Limiter<AnyStore> {
    let queue = Limit::leaky_bucket(Rate::per_second(1).unwrap(), 299).unwrap();
    fixture.limiter_of([Rule::new("own", own).with_per(["user"]), Rule::new("queue", queue).with_mode(queue_mode)])
}

fn request_of(user: &str) -> Request<'_> {
    Request::new("").with_attribute("user", user)
}

/// Of the user's own limit, and of the queue.
async fn remaining(limiter: &Limiter<AnyStore>, user: &str) -> [u64; 2] {
    let peeked = limiter.peek(&request_of(user)).await.unwrap();
    let of = |rule| peeked.checks().iter().find(|check| check.rule() == rule).unwrap().outcome().remaining;
    [of("own"), of("queue")]
}

/// Regression: leaving the queue gave back the user's own token, but not the place. 280 requests that cost nothing filled the queue
/// for everybody.
#[tokio::test]
async fn leaving_a_queue_with_others_behind_is_not_free() {
    on_every_store(async |fixture| {
        for own in one_limit_of_each_kind(50) {
            let limiter = own_and_queue(fixture, own, RuleMode::Enabled);
            let mut admitted = 0;
            for _ in 0..280 {
                let mut attacker = limiter.check(&request_of("mallory")).await.unwrap();
                // Somebody queues behind the attacker before it leaves.
                let _ = limiter.check(&request_of("ann")).await.unwrap();
                admitted += u64::from(attacker.is_allowed());
                limiter.end(&mut attacker.take_grant(), &Ending::Refund).await.unwrap();
            }
            assert_eq!(admitted, 50, "{own:?}");
            assert_eq!(remaining(&limiter, "bob").await, [50, 200], "{own:?}");
            for user in ["mallory", "ann"] {
                limiter.forget(&request_of(user)).await.unwrap();
            }
        }
    })
    .await;
}

/// The last place goes back together with everything else, and then the one before it is the last.
#[tokio::test]
async fn leaving_the_end_of_a_queue_gives_everything_back() {
    on_every_store(async |fixture| {
        for own in one_limit_of_each_kind(50) {
            let limiter = own_and_queue(fixture, own, RuleMode::Enabled);
            let mut receipts = Vec::new();
            for _ in 0..5 {
                receipts.push(limiter.check(&request_of("ann")).await.unwrap().take_grant());
            }
            assert_eq!(remaining(&limiter, "ann").await, [45, 295], "{own:?}");
            while let Some(mut receipt) = receipts.pop() {
                limiter.end(&mut receipt, &Ending::Refund).await.unwrap();
            }
            assert_eq!(remaining(&limiter, "ann").await, [50, 300], "{own:?}");
        }
    })
    .await;
}

/// A queue that has drained has forgotten the place, which then keeps nothing else from going back.
#[tokio::test]
async fn a_place_that_the_queue_has_forgotten_counts_as_given_back() {
    on_every_store(async |fixture| {
        let limiter = own_and_queue(fixture, one_limit_of_each_kind(50)[2], RuleMode::Enabled);
        let mut first = limiter.check(&request_of("ann")).await.unwrap();
        let _ = limiter.check(&request_of("bob")).await.unwrap();
        fixture.clock.advance(2 * SECOND);
        limiter.end(&mut first.take_grant(), &Ending::Refund).await.unwrap();
        assert_eq!(remaining(&limiter, "ann").await, [50, 300]);
    })
    .await;
}

/// Regression: across slots of a cluster, the place in the first queue was given back before it was known that the one in the second is stuck,
/// and then taken again at the end of the queue, even if that had drained.
#[tokio::test]
async fn a_place_that_is_stuck_in_one_queue_changes_nothing_in_another() {
    on_every_store(async |fixture| {
        let queue = |rate| Limit::leaky_bucket(rate, 9).unwrap();
        let limiter = fixture.limiter_of([
            Rule::new("fast", queue(Rate::per_second(1).unwrap())).with_action("both"),
            Rule::new("slow", queue(Rate::per_hour(1).unwrap())),
        ]);
        let fast_reset = async || {
            let peek = limiter.peek(&Request::new("both")).await.unwrap();
            peek.checks().iter().find(|check| check.rule() == "fast").unwrap().outcome().reset_after
        };
        for (after, reset) in [(SECOND / 4, SECOND * 3 / 4), (2 * SECOND, Duration::ZERO)] {
            let mut leaving = limiter.check(&Request::new("both")).await.unwrap();
            let _ = take(&limiter, 1).await;
            fixture.clock.advance(after);
            limiter.end(&mut leaving.take_grant(), &Ending::Refund).await.unwrap();
            assert_eq!(fast_reset().await, reset, "after {after:?}");
        }
    })
    .await;
}

/// Shadow rules affect nothing.
#[tokio::test]
async fn a_place_in_a_shadow_queue_keeps_nothing_else_taken() {
    on_every_store(async |fixture| {
        let limiter = own_and_queue(fixture, one_limit_of_each_kind(50)[0], RuleMode::Shadow);
        let mut first = limiter.check(&request_of("ann")).await.unwrap();
        let _ = limiter.check(&request_of("bob")).await.unwrap();
        limiter.end(&mut first.take_grant(), &Ending::Refund).await.unwrap();
        assert_eq!(remaining(&limiter, "ann").await, [50, 298]);
    })
    .await;
}

#[tokio::test]
async fn settling_corrects_each_check_by_itself() {
    on_every_store(async |fixture| {
        let limiter = own_and_queue(fixture, one_limit_of_each_kind(50)[0], RuleMode::Enabled);
        let mut first = limiter.check(&request_of("ann").with_cost(5)).await.unwrap();
        let _ = limiter.check(&request_of("bob")).await.unwrap();
        limiter.end(&mut first.take_grant(), &Ending::Settle(2.into())).await.unwrap();
        assert_eq!(remaining(&limiter, "ann").await, [48, 294]);
    })
    .await;
}

// === Helpers ===

async fn take<S: Store>(limiter: &Limiter<S>, cost: u64) -> Decision {
    let decision = limiter.check(&Request::new("").with_cost(cost)).await.unwrap();
    assert!(decision.is_allowed());
    decision
}

/// Takes single tokens until there are none. Returns how many there were.
async fn take_all<S: Store>(limiter: &Limiter<S>, receipts: &mut Vec<Grant>) -> u64 {
    let before = receipts.len();
    loop {
        let mut decision = limiter.check(&Request::new("")).await.unwrap();
        if !decision.is_allowed() {
            return (receipts.len() - before) as u64;
        }
        receipts.push(decision.take_grant());
    }
}
