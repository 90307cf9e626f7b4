//! What holds by each front end at which callers reserve: the actual cost counts once, whoever repeats which step at which instance.

use std::time::Duration;

use conformance::instance::Refusal::{AlreadyEnded, KeyReused, NotHeld};
use conformance::instance::{RESERVATION_TTL, by_each_front_end};
use futures_util::future::join_all;
use tidegate::limits::{Period, Periods};
use tidegate::{Limit, Rate, Request, Rule};

const MICROSECOND: Duration = Duration::from_micros(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// A rule of the action `complete`, by tenant.
fn rule(id: &str, limit: Limit) -> Rule {
    Rule::new(id, limit).with_action("complete").with_per(["tenant"])
}

/// 1,000 units in a window that does not end during a test.
fn tokens() -> Rule {
    rule("tokens", window(1_000))
}

fn window(units: u64) -> Limit {
    Limit::fixed_window(units, Duration::from_secs(100_000)).unwrap()
}

fn quota(period: Period) -> Limit {
    Limit::quota(1_000, Periods::utc(period)).unwrap()
}

fn work(cost: u64) -> Request<'static> {
    Request::new("complete").with_attribute("tenant", "acme").with_cost(cost)
}

fn work_of_other(cost: u64) -> Request<'static> {
    Request::new("complete").with_attribute("tenant", "bolt").with_cost(cost)
}

#[tokio::test]
async fn what_is_reserved_is_missing_for_others_until_the_actual_cost_is_committed() {
    by_each_front_end(async |mount| {
        let instance = mount.instance([tokens()]).await;
        let first = instance.reserved(&work(400), "a").await;
        assert_eq!(first.lasts, RESERVATION_TTL);
        assert_eq!((instance.left(&work(1)).await, instance.outstanding(&work(1)).await), (vec![600], vec![(1, 400)]));
        let denied = instance.reserve(&work(601), "b").await.unwrap();
        // A reservation may end at any moment.
        assert_eq!((denied.is_allowed, denied.retry_after, denied.held), (false, Some(SECOND), None));
        instance.commit(&first, 150).await.unwrap();
        assert_eq!((instance.left(&work(1)).await, instance.outstanding(&work(1)).await), (vec![850], vec![(0, 0)]));
        let second = instance.reserved(&work(850), "c").await;
        assert_eq!(instance.left(&work(1)).await, [0]);
        instance.release(&second).await.unwrap();
        assert_eq!(instance.left(&work(1)).await, [850]);
    })
    .await;
}

#[tokio::test]
async fn every_step_can_be_repeated_at_any_instance_and_counts_once() {
    by_each_front_end(async |mount| {
        let rules = || [tokens(), Rule::new("all", quota(Period::Year)).with_action("complete")];
        let instances = [mount.instance(rules()).await, mount.instance(rules()).await];
        let first = instances[0].reserved(&work(400), "a").await;
        for instance in &instances {
            assert_eq!(instance.reserved(&work(400), "a").await, first, "the same reservation, with the same id");
            assert_eq!(instance.reserve(&work(401), "a").await, Err(KeyReused));
            assert_eq!(instance.left(&work(1)).await, [600, 600]);
            assert_eq!(instance.outstanding(&work(1)).await, [(1, 400), (1, 400)]);
        }
        for instance in [1, 0, 1] {
            instances[instance].commit(&first, 150).await.unwrap();
            assert_eq!(instances[instance].left(&work(1)).await, [850, 850]);
        }
        // Another end, or a new beginning, is refused, and the end stays as it was.
        for instance in &instances {
            assert_eq!(instance.commit(&first, 151).await, Err(AlreadyEnded));
            assert_eq!(instance.release(&first).await, Err(AlreadyEnded));
            assert_eq!(instance.reserve(&work(400), "a").await, Err(AlreadyEnded));
        }
        let second = instances[1].reserved(&work(850), "b").await;
        assert!(!instances[0].reserve(&work(1), "c").await.unwrap().is_allowed);
        for instance in [0, 1, 0] {
            instances[instance].release(&second).await.unwrap();
        }
        assert_eq!(instances[0].commit(&second, 850).await, Err(AlreadyEnded));
        assert_eq!(instances[1].left(&work(1)).await, [850, 850]);
        assert_eq!(instances[1].outstanding(&work(1)).await, [(0, 0), (0, 0)]);
    })
    .await;
}

#[tokio::test]
async fn the_same_key_of_another_subject_is_another_reservation() {
    by_each_front_end(async |mount| {
        let instance = mount.instance([tokens()]).await;
        let first = instance.reserved(&work(400), "a").await;
        assert_ne!(instance.reserved(&work_of_other(900), "a").await, first);
        assert_eq!(instance.left(&work(1)).await, [600]);
        instance.commit(&first, 400).await.unwrap();
        assert_eq!((instance.left(&work(1)).await, instance.left(&work_of_other(1)).await), (vec![600], vec![100]));
    })
    .await;
}

#[tokio::test]
async fn a_reservation_that_has_run_out_is_not_found_and_charges_nothing() {
    by_each_front_end(async |mount| {
        let instance = mount.instance([tokens()]).await;
        let first = instance.reserved(&work(400), "a").await;
        mount.clock.advance(RESERVATION_TTL.saturating_sub(MICROSECOND));
        assert_eq!(instance.left(&work(1)).await, [600]);
        mount.clock.advance(MICROSECOND);
        assert_eq!((instance.left(&work(1)).await, instance.outstanding(&work(1)).await), (vec![1_000], vec![(0, 0)]));
        assert_eq!(instance.commit(&first, 400).await, Err(NotHeld));
        assert_eq!(instance.release(&first).await, Err(NotHeld));
        // The key may be used again.
        let again = instance.reserved(&work(500), "a").await;
        instance.commit(&again, 500).await.unwrap();
        mount.clock.advance(RESERVATION_TTL);
        assert_eq!(instance.commit(&again, 500).await, Err(NotHeld), "the end is remembered as long");
        assert_eq!(instance.left(&work(1)).await, [500]);
    })
    .await;
}

#[tokio::test]
async fn a_commit_of_a_thousand_times_the_reservation_uses_up_what_is_left_and_leaves_others_alone() {
    by_each_front_end(async |mount| {
        for limit in [window(1_000), Limit::token_bucket(1_000, Rate::per_hour(1).unwrap()).unwrap()] {
            let instance = mount.instance([rule("tokens", limit)]).await;
            let first = instance.reserved(&work(1), "a").await;
            let other = instance.reserved(&work(300), "b").await;
            instance.commit(&first, 1_000).await.unwrap();
            assert_eq!(instance.left(&work(1)).await, [0], "{limit:?}");
            instance.commit(&other, 0).await.unwrap();
            assert!(instance.take(&work_of_other(1_000)).await.is_allowed);
        }
    })
    .await;
}

#[tokio::test]
async fn a_commit_above_a_quota_is_debt_that_the_next_period_pays() {
    by_each_front_end(async |mount| {
        let instance = mount.instance([rule("tokens", quota(Period::Hour))]).await;
        let first = instance.reserved(&work(1), "a").await;
        instance.commit(&first, 1_700).await.unwrap();
        assert!(!instance.take(&work(0)).await.is_allowed, "in debt");
        mount.clock.advance(HOUR);
        assert_eq!((instance.left(&work(1)).await, instance.take(&work(0)).await.is_allowed), (vec![300], true));
    })
    .await;
}

#[tokio::test]
async fn a_reservation_across_a_boundary_is_charged_to_the_period_it_was_made_in() {
    by_each_front_end(async |mount| {
        let instance = mount.instance([rule("tokens", quota(Period::Hour))]).await;
        mount.clock.advance(HOUR.saturating_sub(SECOND));
        let small = instance.reserved(&work(400), "a").await;
        let large = instance.reserved(&work(500), "b").await;
        mount.clock.advance(SECOND);
        assert_eq!(instance.left(&work(1)).await, [1_000], "a hold counts in its own period");
        instance.commit(&small, 400).await.unwrap();
        assert_eq!(instance.left(&work(1)).await, [1_000]);
        instance.commit(&large, 700).await.unwrap();
        assert_eq!(instance.left(&work(1)).await, [900], "what was too much there is debt");
    })
    .await;
}

/// Otherwise the work would be committed, and counted nowhere.
#[tokio::test]
async fn a_reservation_whose_rules_were_all_changed_or_removed_is_not_found_and_can_be_made_anew() {
    by_each_front_end(async |mount| {
        let instance = mount.instance([rule("tokens", quota(Period::Month))]).await;
        let first = instance.reserved(&work(400), "a").await;
        for rules in [vec![], vec![rule("other", quota(Period::Month))], vec![rule("tokens", quota(Period::Year))]] {
            instance.set_rules(rules);
            assert_eq!(instance.commit(&first, 400).await, Err(NotHeld));
            assert_eq!(instance.release(&first).await, Err(NotHeld));
            assert!(instance.left(&work(1)).await.iter().all(|left| *left == 1_000), "nothing is charged");
        }
        // A cost of 0 is reserved however little is left.
        let anew = instance.reserved(&work(0), "a").await;
        instance.commit(&anew, 400).await.unwrap();
        assert_eq!(instance.left(&work(1)).await, [600]);
        // After the change was taken back.
        instance.set_rules([rule("tokens", quota(Period::Month))]);
        instance.commit(&first, 300).await.unwrap();
        assert_eq!(instance.left(&work(1)).await, [700]);
    })
    .await;
}

#[tokio::test]
async fn a_request_that_one_limit_denies_reserves_nothing_under_the_others() {
    by_each_front_end(async |mount| {
        let slot = Limit::concurrency(1, HOUR).unwrap();
        let instance = mount.instance([tokens(), rule("small", window(100)), rule("exports", slot)]).await;
        let denied = instance.reserve(&work(101), "a").await.unwrap();
        assert_eq!((denied.is_allowed, denied.rule.as_deref(), denied.held), (false, Some("small"), None));
        assert!(instance.outstanding(&work(1)).await.iter().all(|open| *open == (0, 0)));
        // A slot of a concurrency limit is part of the reservation.
        let held = instance.reserved(&work(1), "b").await;
        assert_eq!(instance.reserve(&work(1), "c").await.unwrap().rule.as_deref(), Some("exports"));
        instance.commit(&held, 1).await.unwrap();
        assert!(instance.reserve(&work(1), "c").await.unwrap().is_allowed);
    })
    .await;
}

#[tokio::test]
async fn a_request_without_limits_is_allowed_and_has_no_reservation() {
    by_each_front_end(async |mount| {
        let (instance, request) = (mount.instance([tokens()]).await, Request::new("other"));
        let answer = instance.reserve(&request, "a").await.unwrap();
        assert_eq!((answer.is_allowed, answer.held, instance.outstanding(&request).await), (true, None, vec![]));
    })
    .await;
}

/// The limit holds for the sum of what is consumed and reserved, however many callers there are.
#[tokio::test]
async fn concurrent_reservations_at_two_instances_never_exceed_the_limit() {
    by_each_front_end(async |mount| {
        let instances = [mount.instance([tokens()]).await, mount.instance([tokens()]).await];
        let calls: Vec<_> = (0..24).map(|call| (&instances[call % 2], format!("call-{call}"))).collect();
        let request = work(100);
        let answers = join_all(calls.iter().map(|(instance, key)| instance.reserve(&request, key))).await;
        let held: Vec<_> = answers.into_iter().filter_map(|answer| answer.unwrap().held).collect();
        assert_eq!((held.len(), instances[0].left(&work(1)).await), (10, vec![0]));
        for (call, held) in held.iter().enumerate() {
            instances[call % 2].commit(held, 90).await.unwrap();
        }
        assert_eq!(instances[1].left(&work(1)).await, [100]);
    })
    .await;
}
