//! What holds by each front end at which callers take slots: their owners alone hold them, and renew and release them at any instance.

use std::time::Duration;

use conformance::instance::Refusal::NotHeld;
use conformance::instance::{by_each_front_end, by_the_check_api};
use tidegate::{Limit, Rate, Request, Rule};

use crate::leases::{LEASE, MICROSECOND, SECOND, slots};

/// A rule of the action `exports`.
fn exports(limit: Limit) -> Rule {
    Rule::new("exports", limit).with_action("exports").with_per(["tenant"])
}

fn export() -> Request<'static> {
    Request::new("exports").with_attribute("tenant", "acme")
}

/// A worker that is killed neither renews nor releases.
#[tokio::test]
async fn the_slot_of_a_dead_worker_is_free_after_the_lease_no_earlier_and_no_later() {
    by_each_front_end(async |mount| {
        let instance = mount.instance([exports(slots(1))]).await;
        let mut lease = instance.hold(&export()).await;
        assert_eq!(lease.lasts, LEASE);
        mount.clock.advance(LEASE / 2);
        instance.renew(&mut lease).await.unwrap();
        mount.clock.advance(LEASE.saturating_sub(MICROSECOND));
        let denied = instance.take(&export()).await;
        assert_eq!((denied.is_allowed, denied.retry_after, denied.held), (false, Some(SECOND), None));
        mount.clock.advance(MICROSECOND);
        assert!(instance.take(&export()).await.is_allowed);
    })
    .await;
}

#[tokio::test]
async fn a_heartbeat_after_the_lease_has_run_out_is_refused_and_takes_nothing() {
    by_each_front_end(async |mount| {
        let instance = mount.instance([exports(slots(1))]).await;
        let mut lease = instance.hold(&export()).await;
        mount.clock.advance(LEASE);
        assert_eq!((instance.renew(&mut lease).await, instance.left(&export()).await), (Err(NotHeld), vec![1]));
        let mut other = instance.hold(&export()).await;
        assert_eq!(instance.renew(&mut lease).await, Err(NotHeld), "another holds the slot");
        assert_eq!(instance.release(&lease).await, Err(NotHeld));
        assert_eq!(instance.left(&export()).await, [0], "the slot of the other is not released");
        instance.renew(&mut other).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_second_release_frees_no_slot() {
    by_each_front_end(async |mount| {
        let instance = mount.instance([exports(slots(2))]).await;
        let (first, mut second) = (instance.hold(&export()).await, instance.hold(&export()).await);
        instance.release(&first).await.unwrap();
        for _ in 0..3 {
            assert_eq!((instance.release(&first).await, instance.left(&export()).await), (Err(NotHeld), vec![1]));
        }
        let _other = instance.hold(&export()).await;
        assert_eq!((instance.release(&first).await, instance.left(&export()).await), (Err(NotHeld), vec![0]));
        instance.renew(&mut second).await.unwrap();
    })
    .await;
}

/// A heartbeat may arrive after the release of the same worker. By the store alone, the slot could have been lost.
#[tokio::test]
async fn a_heartbeat_after_the_release_takes_no_slot_again() {
    by_the_check_api(async |mount| {
        let instance = mount.instance([exports(slots(1))]).await;
        let taken = instance.hold(&export()).await;
        let mut renewed = taken.clone();
        instance.renew(&mut renewed).await.unwrap();
        instance.release(&taken).await.unwrap();
        for mut lease in [taken, renewed] {
            assert_eq!((instance.renew(&mut lease).await, instance.left(&export()).await), (Err(NotHeld), vec![1]));
        }
    })
    .await;
}

#[tokio::test]
async fn a_lease_is_renewed_and_released_by_any_instance() {
    by_each_front_end(async |mount| {
        let (here, there) = (mount.instance([exports(slots(2))]).await, mount.instance([exports(slots(2))]).await);
        let (mut first, mut second) = (here.hold(&export()).await, there.hold(&export()).await);
        assert!(!here.take(&export()).await.is_allowed && !there.take(&export()).await.is_allowed);
        for instance in [&there, &here] {
            instance.renew(&mut first).await.unwrap();
        }
        there.release(&first).await.unwrap();
        for instance in [&here, &there] {
            assert_eq!(instance.release(&first).await, Err(NotHeld));
        }
        assert!(here.take(&export()).await.is_allowed && !there.take(&export()).await.is_allowed);
        here.renew(&mut second).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn the_release_of_one_lease_leaves_those_of_other_actions_and_subjects() {
    by_each_front_end(async |mount| {
        let instance = mount.instance([exports(slots(1)), Rule::new("reports", slots(1)).with_action("reports")]).await;
        let mut lease = instance.hold(&export()).await;
        for other in [Request::new("reports"), Request::new("exports").with_attribute("tenant", "bolt")] {
            let other = instance.hold(&other).await;
            instance.release(&other).await.unwrap();
            instance.renew(&mut lease).await.unwrap();
            assert_eq!(instance.left(&export()).await, [0]);
        }
    })
    .await;
}

#[tokio::test]
async fn a_request_that_takes_no_slot_holds_nothing() {
    by_each_front_end(async |mount| {
        let bucket = Limit::token_bucket(1, Rate::per_hour(1).unwrap()).unwrap();
        let instance = mount.instance([exports(slots(1)), Rule::new("bucket", bucket).with_action("other")]).await;
        let (free, too_large) = (export().with_cost(0), export().with_cost(2));
        for (request, is_allowed) in
            [(Request::new("other"), true), (Request::new("none"), true), (free, true), (too_large, false)]
        {
            let answer = instance.take(&request).await;
            assert_eq!((answer.is_allowed, answer.held), (is_allowed, None), "{request:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn holders_above_a_lowered_limit_lose_their_slots_when_they_renew_and_the_others_go_on() {
    by_each_front_end(async |mount| {
        let instance = mount.instance([exports(slots(5))]).await;
        let mut leases = Vec::new();
        for _ in 0..5 {
            leases.push(instance.hold(&export()).await);
        }
        instance.set_rules([exports(slots(2))]);
        assert!(!instance.take(&export()).await.is_allowed);
        for _ in 0..2 {
            let mut held = 0;
            for lease in &mut leases {
                held += usize::from(instance.renew(lease).await.is_ok());
            }
            assert_eq!(held, 2, "three of five gave their slots up");
        }
        assert_eq!(instance.left(&export()).await, [0]);
        instance.set_rules([exports(slots(5))]);
        assert_eq!(instance.left(&export()).await, [3]);
    })
    .await;
}

#[tokio::test]
async fn a_lease_survives_a_reload_and_the_removal_of_its_rule() {
    by_each_front_end(async |mount| {
        let instance = mount.instance([exports(slots(1))]).await;
        let mut lease = instance.hold(&export()).await;
        let longer = Limit::concurrency(1, 2 * LEASE).unwrap();
        for (rules, lasts) in [(vec![], LEASE), (vec![exports(slots(1))], LEASE), (vec![exports(longer)], 2 * LEASE)] {
            let is_limited = !rules.is_empty();
            instance.set_rules(rules);
            instance.renew(&mut lease).await.unwrap();
            assert_eq!(lease.lasts, lasts);
            assert!(!is_limited || instance.left(&export()).await == [0]);
        }
        instance.release(&lease).await.unwrap();
        assert_eq!(instance.left(&export()).await, [1]);
    })
    .await;
}

#[tokio::test]
async fn holders_go_on_after_the_store_was_emptied_and_count_again() {
    by_each_front_end(async |mount| {
        let instance = mount.instance([exports(slots(2))]).await;
        let (mut first, mut second) = (instance.hold(&export()).await, instance.hold(&export()).await);
        mount.clock.advance(LEASE / 3);
        instance.forget(&export()).await;
        instance.renew(&mut first).await.unwrap();
        let mut new = instance.hold(&export()).await;
        assert_eq!(instance.renew(&mut second).await, Err(NotHeld), "a new one was let in, by what was known");
        assert!(!instance.take(&export()).await.is_allowed, "never more than two");
        instance.renew(&mut first).await.unwrap();
        instance.renew(&mut new).await.unwrap();
    })
    .await;
}

/// Its lease would have run out, so others may have worked in its place.
#[tokio::test]
async fn a_holder_that_is_late_does_not_get_a_lost_slot_again() {
    by_each_front_end(async |mount| {
        let instance = mount.instance([exports(slots(1))]).await;
        let mut late = instance.hold(&export()).await;
        let mut renewed = late.clone();
        mount.clock.advance(LEASE / 2);
        instance.renew(&mut renewed).await.unwrap();
        mount.clock.advance(LEASE / 2);
        instance.forget(&export()).await;
        assert_eq!((instance.renew(&mut late).await, instance.left(&export()).await), (Err(NotHeld), vec![1]));
        instance.renew(&mut renewed).await.unwrap();
        assert_eq!(instance.left(&export()).await, [0]);
    })
    .await;
}

/// The slots of one lease are lost together: what is left of it is released.
#[tokio::test]
async fn a_lease_of_two_limits_that_loses_one_slot_releases_the_other() {
    by_the_check_api(async |mount| {
        let all = |max| Rule::new("all", slots(max)).with_action("exports");
        let instance = mount.instance([exports(slots(2)), all(2)]).await;
        let (mut first, mut second) = (instance.hold(&export()).await, instance.hold(&export()).await);
        instance.set_rules([exports(slots(2)), all(1)]);
        assert_eq!(instance.renew(&mut first).await, Err(NotHeld));
        instance.set_rules([exports(slots(2))]);
        assert_eq!(instance.left(&export()).await, [1]);
        instance.renew(&mut second).await.unwrap();
    })
    .await;
}

/// Its memory has no room for a new key, but a release needs none.
#[tokio::test]
async fn slots_are_released_while_the_server_is_out_of_memory() {
    by_each_front_end(async |mount| {
        let Some(server) = mount.server() else { return };
        let instance = mount.instance([exports(Limit::concurrency(2, Duration::from_secs(3600)).unwrap())]).await;
        let (first, mut second) = (instance.hold(&export()).await, instance.hold(&export()).await);
        server.command::<()>("CONFIG SET maxmemory 1");
        assert_eq!((instance.release(&first).await, instance.release(&first).await), (Ok(()), Err(NotHeld)));
        server.command::<()>("CONFIG SET maxmemory 0");
        assert!(instance.take(&export()).await.is_allowed && !instance.take(&export()).await.is_allowed);
        instance.renew(&mut second).await.unwrap();
    })
    .await;
}
