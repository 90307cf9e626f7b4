//! Shared queues in a real cluster, where the keys of a plan are on several servers: a plan that another limit denies wastes no
//! place, since a place cannot be given back once others wait behind it.

use conformance::server::Kind;
use conformance::suite::{connect_store, long_timeout_options, one_limit_of_each_kind};
use conformance::topology::Cluster;
use futures_util::future::join_all;
use tidegate::{Limit, Limiter, Rate, Request, Rule, RuleSet};
use tidegate_redis::RedisStore;

const USERS: usize = 200;

/// A queue that drains too slowly to matter.
fn queue(places: u64) -> Limit {
    Limit::leaky_bucket(Rate::per_hour(1).unwrap(), places - 1).unwrap()
}

async fn limiter(cluster: &Cluster, rules: impl IntoIterator<Item = Rule>) -> Limiter<RedisStore> {
    let store = connect_store(&cluster.url(), &long_timeout_options()).await;
    Limiter::new(RuleSet::new(rules).unwrap(), store)
}

/// One request of every user at the same time. Returns how many pass.
async fn check_all(limiter: &Limiter<RedisStore>, users: &[String]) -> usize {
    let check = async |user: &String| limiter.check(&Request::new("").with_attribute("user", user)).await;
    let decisions = join_all(users.iter().map(check)).await;
    decisions.into_iter().filter(|decision| decision.as_ref().unwrap().is_allowed()).count()
}

/// What remains of each rule for a user without requests.
async fn remaining(limiter: &Limiter<RedisStore>) -> Vec<u64> {
    let peeked = limiter.peek(&Request::new("").with_attribute("user", "nobody")).await.unwrap();
    peeked.checks().iter().map(|check| check.outcome().remaining).collect()
}

fn users() -> Vec<String> {
    (0..USERS).map(|number| format!("user-{number}")).collect()
}

/// Regression: 200 requests that the users' own limits denied took the shared queue from 800 places to 601.
#[tokio::test(flavor = "multi_thread")]
async fn denied_plans_take_no_place_in_a_shared_queue() {
    let (cluster, users) = (Cluster::start(Kind::Redis, 3, false), users());
    for (number, own) in one_limit_of_each_kind(1).into_iter().enumerate() {
        let limiter = limiter(
            &cluster,
            [
                Rule::new(format!("queue-{number}"), queue(1_000)),
                Rule::new(format!("own-{number}"), own).with_per(["user"]),
            ],
        )
        .await;
        assert_eq!(check_all(&limiter, &users).await, USERS, "{own:?}");
        assert_eq!(remaining(&limiter).await, [800, 1], "{own:?}");
        for _ in 0..3 {
            assert_eq!(check_all(&limiter, &users).await, 0, "{own:?}");
        }
        assert_eq!(remaining(&limiter).await, [800, 1], "{own:?}");
    }
}

/// Of two queues one comes first, and its place may be stuck when the other queue is full. A client that does this on purpose pays
/// for each such place with its own tokens.
#[tokio::test(flavor = "multi_thread")]
async fn a_place_wasted_on_a_full_second_queue_costs_the_client_its_own_tokens() {
    let cluster = Cluster::start(Kind::Redis, 3, false);
    let own = one_limit_of_each_kind(50)[0];
    let rules =
        [Rule::new("wide", queue(1_000)), Rule::new("narrow", queue(1)), Rule::new("own", own).with_per(["user"])];
    let limiter = limiter(&cluster, rules).await;
    assert_eq!(check_all(&limiter, &["ann".to_owned()]).await, 1);
    let requests: Vec<String> = vec!["mallory".to_owned(); USERS];
    assert_eq!(check_all(&limiter, &requests).await, 0);
    let left = limiter.peek(&Request::new("").with_attribute("user", "mallory")).await.unwrap();
    let [wide, _, own] = [0, 1, 2].map(|index| left.checks()[index].outcome().remaining);
    assert!(999 - wide <= 50 - own, "{} places cost {} tokens", 999 - wide, 50 - own);
}
