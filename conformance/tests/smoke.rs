//! temporary
use conformance::server::{KINDS, Server};
use std::time::Duration;
use tidegate::*;
use tidegate_redis::RedisOptions;

#[tokio::test]
async fn smoke() {
    for kind in KINDS {
        let server = Server::start(kind);
        let clock = ManualClock::at(Timestamp::from_micros(1_790_000_000_000_000));
        let store = server
            .store_with(RedisOptions::new().clock(clock.clone()))
            .await;
        let w = Duration::from_secs(10);
        for limit in [
            Limit::token_bucket(3, Rate::per_second(7).unwrap()).unwrap(),
            Limit::leaky_bucket(Rate::per_second(7).unwrap(), 2).unwrap(),
            Limit::fixed_window(3, w).unwrap(),
            Limit::sliding_log(3, w).unwrap(),
            Limit::sliding_window(3, w, 5).unwrap(),
        ] {
            let rules = RuleSet::new([Rule::new("api", limit).per(["user"])]).unwrap();
            let a = Limiter::new(rules.clone(), store.clone());
            let b = Limiter::new(rules, MemoryStore::new().clock(clock.clone()));
            let req = Request::new("x").attribute("user", "ann");
            for step in 0..12 {
                let x = a.check(&req).await.unwrap();
                let y = b.check(&req).await.unwrap();
                assert_eq!(
                    format!("{x:?}"),
                    format!("{y:?}"),
                    "{kind:?} {limit:?} {step}"
                );
                clock.advance(Duration::from_micros(50_003 * step));
            }
        }
    }
}
