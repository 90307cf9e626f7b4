//! Heartbeats: how many instances share a store, by the server's time. Each store sends one heartbeat when it is opened, which is all
//! that these tests wait for; the time is injected.

use std::time::Duration;

use conformance::server::{KINDS, Kind, Server};
use conformance::suite::{START, long_timeout_options, until};
use redis::Connection;
use tidegate::ManualClock;
use tidegate::spi::Store;
use tidegate_redis::RedisStore;

const LIST: &str = "tg1{00}@instances";
const RULES_LIST: &str = "tg1{00}@rules";

/// Each instance counts once, until its last heartbeat is 15 seconds old.
#[tokio::test]
async fn instances_count_while_their_heartbeats_arrive() {
    for kind in KINDS {
        for server in [Server::start(kind), Server::start_alone_in_cluster(kind)] {
            let clock = ManualClock::starting_at(START);
            let one = open(&server, &clock);
            until(|| one.instances() == Some(1)).await;
            clock.advance(Duration::from_secs(10));
            let two = open(&server, &clock);
            until(|| two.instances() == Some(2)).await;
            clock.advance(Duration::from_secs(5));
            let three = open(&server, &clock);
            until(|| three.instances() == Some(3)).await;
            assert_eq!(Store::instances(&three), Some(3), "what a limiter asks for");
            // The last heartbeat of the first is more than 15 seconds old, that of the second ten.
            clock.advance(Duration::from_micros(5_000_001));
            let four = open(&server, &clock);
            until(|| four.instances() == Some(3)).await;
            let lives: i64 = redis::cmd("PTTL").arg(LIST).query(&mut server.connection()).unwrap();
            assert!(lives > 0, "{kind:?}: the list expires");
        }
    }
}

/// The store's clock decides, and instances that do not know their rules, such as those of earlier versions, do not matter.
#[tokio::test]
async fn instances_know_how_many_rule_sets_there_are_and_for_how_long() {
    for kind in KINDS {
        for server in [Server::start(kind), Server::start_alone_in_cluster(kind)] {
            let clock = ManualClock::starting_at(START);
            let silent = open(&server, &clock);
            until(|| silent.instances() == Some(1)).await;
            assert_eq!((silent.rule_sets(), silent.rules_differ_for()), (None, None), "{kind:?}");
            let with_rules = async |fingerprint| {
                let store = open(&server, &clock);
                store.announce_rules(fingerprint);
                until(|| store.rule_sets().is_some()).await;
                (store.rule_sets().unwrap(), store.rules_differ_for())
            };
            assert_eq!([with_rules(7).await, with_rules(7).await], [(1, None); 2], "{kind:?}");
            clock.advance(Duration::from_secs(5));
            // Two rule sets for ten minutes, while instances of both send heartbeats; one of them reloads meanwhile.
            for seconds in (0..=600).step_by(15) {
                let lasts = (2, Some(Duration::from_secs(seconds)));
                let other = if seconds < 300 { 8 } else { 9 };
                let reloaded = if seconds == 300 { (3, lasts.1) } else { lasts };
                assert_eq!(with_rules(other).await, reloaded, "{kind:?} after {seconds} s");
                assert_eq!(with_rules(7).await, reloaded, "{kind:?} after {seconds} s");
                clock.advance(Duration::from_secs(15));
            }
            let lives: i64 = redis::cmd("PTTL").arg(RULES_LIST).query(&mut server.connection()).unwrap();
            assert!(lives > 0, "{kind:?}: the list expires");
            // Only one is live now, and the next difference begins anew.
            clock.advance(Duration::from_micros(1));
            assert_eq!([with_rules(7).await, with_rules(8).await], [(1, None), (2, Some(Duration::ZERO))], "{kind:?}");
        }
    }
}

/// A backward clock step neither loses live instances nor keeps old ones.
#[tokio::test]
async fn a_backward_clock_step_loses_no_instance() {
    let server = Server::start(Kind::Redis);
    let clock = ManualClock::starting_at(START);
    let one = open(&server, &clock);
    until(|| one.instances() == Some(1)).await;
    clock.set(START.plus(Duration::from_secs(2)));
    let two = open(&server, &clock);
    until(|| two.instances() == Some(2)).await;
    clock.set(START);
    let three = open(&server, &clock);
    until(|| three.instances() == Some(3)).await;
    clock.set(tidegate::Timestamp::from_micros(START.as_micros() - 3_600_000_000));
    let four = open(&server, &clock);
    until(|| four.instances() == Some(1)).await;
}

/// The instance list is bounded, and a key of another type is not overwritten.
#[tokio::test]
async fn the_instance_list_is_bounded_and_a_foreign_key_is_not_overwritten() {
    for kind in KINDS {
        let server = Server::start(kind);
        let (clock, mut connection) = (ManualClock::starting_at(START), server.connection());
        let entry = |number: u64| [number.to_le_bytes(), (START.as_micros() as f64).to_le_bytes()].concat();
        let list: Vec<u8> = (0..5000).flat_map(entry).collect();
        let _: () = redis::cmd("SET").arg(LIST).arg(list).query(&mut connection).unwrap();
        let store = open(&server, &clock);
        until(|| store.instances() == Some(4096)).await;
        assert_eq!(length(&mut connection), 4096 * 16, "{kind:?}");

        let _: () = redis::cmd("SET").arg(LIST).arg("somebody else's").query(&mut connection).unwrap();
        let other = RedisStore::connect_with(
            &server.url(),
            long_timeout_options().with_clock(clock.clone()).with_heartbeats(true),
        )
        .await;
        let other = other.unwrap();
        until(|| calls_of_scripts(&server) > 8).await;
        assert_eq!((other.instances(), length(&mut connection)), (None, 15), "{kind:?}");
    }
}

/// A store without heartbeats only reads the list.
#[tokio::test]
async fn a_store_without_heartbeats_is_not_counted() {
    let server = Server::start(Kind::Valkey);
    let looking = server.store_with(long_timeout_options()).await;
    assert_eq!((looking.instances(), length(&mut server.connection())), (None, 0));
}

// === Helpers ===

fn open(server: &Server, clock: &ManualClock) -> RedisStore {
    RedisStore::open(&server.url(), long_timeout_options().with_clock(clock.clone()).with_heartbeats(true)).unwrap()
}

fn length(connection: &mut Connection) -> usize {
    redis::cmd("STRLEN").arg(LIST).query(connection).unwrap()
}

fn calls_of_scripts(server: &Server) -> u64 {
    let stats: String = redis::cmd("INFO").arg("commandstats").query(&mut server.connection()).unwrap();
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    calls.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}
