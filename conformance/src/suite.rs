//! Runs one behaviour on every store: in memory, on Redis, on Valkey and in a cluster, all on a clock that the test moves.

use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use futures_util::future::join_all;
use tidegate::limits::{Period, Periods};
use tidegate::spi::{Key, Namespace, Plan, Store, Verdict};
use tidegate::{Limit, Limiter, ManualClock, MemoryStore, Rate, Request, Rule, RuleSet, StoreError, Timestamp};
use tidegate_redis::{RedisOptions, RedisStore};
pub use tidegate_server::AnyStore;
use tidegate_server::gateway::{Gateway, GatewayOptions};
use tidegate_tower::LimitLayer;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use crate::poll::Polling;
use crate::server::{Kind, Server};

/// Where every clock starts: a midnight in September 2026, so that windows of a day and shorter begin there.
pub const START: Timestamp = Timestamp::from_micros(20_717 * 86_400_000_000);

/// The maximum time that a test waits for a condition.
pub const MAX_WAIT: Duration = Duration::from_secs(60);

/// A store with its own clock, for one behaviour.
#[derive(Debug)]
pub struct StoreFixture {
    pub clock: ManualClock,
    /// The store; clones share their state.
    pub store: AnyStore,
    server: Option<Server>,
    limiters: AtomicU32,
}

/// Runs `behaviour` on each store. The output of a failed test ends with the name of the store.
pub async fn on_every_store(behaviour: impl AsyncFn(&StoreFixture)) {
    println!("in memory");
    behaviour(&StoreFixture::in_memory()).await;
    println!("on Redis");
    behaviour(&StoreFixture::on_server(Server::start(Kind::Redis)).await).await;
    println!("on Valkey");
    behaviour(&StoreFixture::on_server(Server::start(Kind::Valkey)).await).await;
    // One server is enough: the store splits plans by slot even if one server owns all slots.
    println!("in a cluster");
    behaviour(&StoreFixture::on_server(Server::start_alone_in_cluster(Kind::Redis)).await).await;
}

/// One limit of each kind that consumes units: `amount` at once, then a refill too slow to matter.
pub fn one_limit_of_each_kind(amount: u64) -> [Limit; 5] {
    const YEAR: Duration = Duration::from_secs(31_557_600);
    let slow = Rate::per_hour(1).unwrap();
    [
        Limit::token_bucket(amount, slow).unwrap(),
        Limit::leaky_bucket(slow, amount - 1).unwrap(),
        // Aligned to the epoch: this window began in 2020.
        Limit::fixed_window(amount, 50 * YEAR).unwrap(),
        Limit::sliding_log(amount, 10 * YEAR).unwrap(),
        Limit::sliding_window(amount, 10 * YEAR, 10).unwrap(),
    ]
}

/// One limit of each kind, with a quota, and with the concurrency limit, whose slots do not run out in a test. A charge takes none, and
/// what ends a request releases them.
pub fn limits_of_every_kind(amount: u64) -> [Limit; 7] {
    let [token, leaky, fixed, log, sliding] = one_limit_of_each_kind(amount);
    let quota = Limit::quota(amount, Periods::utc(Period::Year)).unwrap();
    [token, leaky, fixed, log, sliding, quota, Limit::concurrency(amount, Duration::from_secs(86_400)).unwrap()]
}

/// One limit of each kind: `amount` at once and per `window`.
pub fn limits_with_window(amount: u64, window: Duration) -> [Limit; 5] {
    let rate = Rate::new(amount, window).unwrap();
    [
        Limit::token_bucket(amount, rate).unwrap(),
        Limit::leaky_bucket(rate, amount - 1).unwrap(),
        Limit::fixed_window(amount, window).unwrap(),
        Limit::sliding_log(amount, window).unwrap(),
        Limit::sliding_window(amount, window, 5).unwrap(),
    ]
}

/// Sends `times` requests of this `cost` and counts those that pass.
pub async fn count_allowed<S: Store>(limiter: &Limiter<S>, cost: u64, times: u64) -> u64 {
    let mut passed = 0;
    for _ in 0..times {
        let decision = limiter.check(&Request::new("").with_cost(cost)).await.unwrap();
        passed += u64::from(decision.is_allowed());
    }
    passed
}

/// The remaining units of the only check of `limiter`.
pub async fn left<S: Store>(limiter: &Limiter<S>) -> u64 {
    limiter.peek(&Request::new("")).await.unwrap().remaining().unwrap()
}

/// Repeats `operation` until it succeeds. Every error until then must be transient. Other tasks, such as reconnecting ones, run in
/// between.
pub async fn retry_while_transient<T>(operation: impl AsyncFn() -> Result<T, StoreError>) -> T {
    let mut polling = Polling::until("the store answers");
    loop {
        match operation().await {
            Ok(answer) => return answer,
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
        polling.pause(String::new).await;
    }
}

/// Connects a store to servers that are up, however long a busy machine takes for it.
pub async fn connect_store(url: &str, options: &RedisOptions) -> RedisStore {
    let mut polling = Polling::until("a server that is up accepts a connection");
    loop {
        match RedisStore::connect_with(url, options.clone()).await {
            Ok(store) => return store,
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
        polling.pause(String::new).await;
    }
}

/// Serves `app` on a free port, as long as the test runs.
pub async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async { axum::serve(listener, app).await });
    address
}

/// Starts a gateway in front of `upstream`, and returns where it listens.
pub async fn start_gateway<S: Store + 'static>(
    upstream: SocketAddr,
    layer: LimitLayer<S>,
) -> (SocketAddr, AbortHandle) {
    let gateway = Gateway::new(&format!("http://{upstream}").parse().unwrap(), GatewayOptions::new()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (address, tokio::spawn(gateway.serve(listener, layer, pending())).abort_handle())
}

/// Decides each plan on its own, all of them at the same time.
pub async fn decide_all<S: Store>(store: &S, plans: &[Plan<'_>]) -> Vec<Result<Verdict, StoreError>> {
    join_all(plans.iter().map(|plan| store.decide(plan))).await
}

/// Waits until the store of `limiter` answers.
pub async fn wait_until_reachable<S: Store>(limiter: &Limiter<S>) {
    let plan = limiter.plan(&Request::new("")).with_peek();
    retry_while_transient(async || limiter.store().decide(&plan).await).await;
}

/// Options with timeouts that are not reached even on a busy machine, and without heartbeat keys.
pub fn long_timeout_options() -> RedisOptions {
    let long = Duration::from_secs(60);
    let options = RedisOptions::new().with_timeout(long).with_queue_wait(long).with_connection_timeout(long);
    options.with_heartbeats(false)
}

/// The name under which a Redis store in the default namespace keeps `key`.
pub fn key_name(key: &Key<'_>) -> Vec<u8> {
    let mut name = Vec::new();
    key.write_name(Namespace::DEFAULT, &mut name);
    name
}

/// Lets other tasks run until `condition` holds.
pub async fn until(condition: impl Fn() -> bool) {
    wait_until("the condition never became true", condition, String::new).await;
}

/// Waits until `condition` holds, and panics with `problem` and `details` if it never does.
pub async fn wait_until(problem: &str, condition: impl Fn() -> bool, details: impl Fn() -> String) {
    let mut polling = Polling::until(problem);
    while !condition() {
        polling.pause(&details).await;
    }
}

impl StoreFixture {
    pub fn in_memory() -> Self {
        let clock = ManualClock::starting_at(START);
        let store = AnyStore::Memory(Arc::new(MemoryStore::new().with_clock(clock.clone())));
        Self { clock, store, server: None, limiters: AtomicU32::new(0) }
    }

    pub async fn on_server(server: Server) -> Self {
        let clock = ManualClock::starting_at(START);
        let store = AnyStore::Redis(server.store_with(long_timeout_options().with_clock(clock.clone())).await);
        Self { clock, store, server: Some(server), limiters: AtomicU32::new(0) }
    }

    /// A limiter with one rule, whose keys no other limiter uses.
    pub fn limiter(&self, limit: Limit) -> Limiter<AnyStore> {
        let number = self.limiters.fetch_add(1, Ordering::Relaxed);
        self.limiter_of([Rule::new(format!("rule-{number}"), limit)])
    }

    pub fn limiter_of(&self, rules: impl IntoIterator<Item = Rule>) -> Limiter<AnyStore> {
        Limiter::new(RuleSet::new(rules).unwrap(), self.store.clone())
    }

    pub fn server(&self) -> Option<&Server> {
        self.server.as_ref()
    }

    pub fn keys(&self) -> usize {
        match (&self.store, &self.server) {
            (AnyStore::Memory(store), _) => store.keys(),
            (_, Some(server)) => redis::cmd("DBSIZE").query(&mut server.connection()).unwrap(),
            (_, None) => 0,
        }
    }
}
