//! `Scenario`: callers and a misbehaving server, and the promises that every result is checked against.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use tidegate::spi::Store;
use tidegate::{
    Decision, Limit, Limiter, ManualClock, MemoryStore, OnFailure, Request, Rule, RuleSet, StoreError, StoreErrorKind,
    Timestamp,
};
use tokio::time::Instant;

use super::random::{millis, one_in, pick};
use super::simulated_server::{HEALTHY, ServerBehavior, ServerCounters, SimulatedServer};
use crate::breaker::BreakerState;
use crate::connector::Endpoint;
use crate::cross_slot::RecentDenials;
use crate::denial_cache::DenialCache;
use crate::heartbeat::Heartbeat;
use crate::node::Node;
use crate::options::RedisOptions;
use crate::router::Router;
use crate::store::RedisStore;
use crate::timer;

/// The limit of the store: less than most scenarios request.
const LIMIT: u64 = 600;
/// The limit of the `static` failure policy.
const STATIC_LIMIT: u64 = 7;
const INSTANCES: u32 = 3;

/// A healthy server is used again after this time: the longest reconnect delay, a connection attempt that was already
/// running, and a response.
const MAX_RECOVERY: Duration = Duration::from_millis(1_000 + 1_000 + 200);

/// The behaviors that a server changes between. Three of fifteen times it is healthy.
const BEHAVIORS: [ServerBehavior; 15] = [
    HEALTHY,
    HEALTHY,
    HEALTHY,
    ServerBehavior::Responds(19),
    ServerBehavior::Responds(30),
    ServerBehavior::Responds(60),
    ServerBehavior::Hangs,
    ServerBehavior::Ignores,
    ServerBehavior::ClosesBeforeCall,
    ServerBehavior::ClosesAfterCall,
    ServerBehavior::ClosesWithinReply,
    ServerBehavior::RepliesError("OOM"),
    ServerBehavior::RepliesError("READONLY"),
    ServerBehavior::Down,
    ServerBehavior::Unreachable,
];

/// One scenario.
pub(super) struct Scenario {
    pub(super) limiter: Limiter<RedisStore>,
    pub(super) server: Arc<SimulatedServer>,
    policy: OnFailure,
    timeout: Duration,
    max_in_flight: usize,
    /// The last cost used. Each call has a cost of its own, which identifies it at the server.
    pub(super) costs: AtomicU64,
    /// The sum of the costs that the store admitted.
    pub(super) by_store: AtomicU64,
    /// The sum of the costs that the failure policy admitted.
    pub(super) by_fallback: AtomicU64,
    /// The number of calls that the failure policy admitted.
    calls_by_fallback: AtomicU64,
    history: Mutex<CallHistory>,
}

/// What later calls are compared with.
#[derive(Default)]
struct CallHistory {
    /// Timeouts in a row, and the server's counters at the last of them.
    timeouts: u32,
    counters: ServerCounters,
    /// The last trial call of a half-open breaker: the number of its connection, and when it ended.
    trial: Option<(u64, Instant)>,
    /// The costs of calls that were reported as not applied.
    not_applied: Vec<u64>,
}

/// The situation when a call started.
#[derive(Clone, Copy, Debug)]
struct CallStart {
    at: Instant,
    breaker: BreakerState,
    counters: ServerCounters,
}

/// Running
impl Scenario {
    pub(super) fn new(rng: &mut Rng) -> Self {
        let limit = Limit::fixed_window(LIMIT, Duration::from_secs(86_400)).unwrap();
        let static_limit = Limit::fixed_window(STATIC_LIMIT, Duration::from_secs(86_400)).unwrap();
        let policies = [
            OnFailure::Local,
            OnFailure::Share,
            OnFailure::Open,
            OnFailure::Closed,
            OnFailure::Static,
            OnFailure::Degraded,
        ];
        let policy = pick(rng, &policies);
        let timeout = Duration::from_millis(pick(rng, &[25, 25, 25, 15, 60]));
        let max_in_flight = pick(rng, &[1, 2, 4, 1024]);
        let server = SimulatedServer::new(rng.u64(..), &limit);
        let options =
            RedisOptions::new().with_timeout(timeout).with_max_in_flight(max_in_flight).with_heartbeats(false);
        let node = Node::new("simulated", Endpoint::Simulated(Arc::clone(&server)), &options);
        let store = RedisStore {
            denial_cache: Arc::new(DenialCache::new(None)),
            router: Router::Single(node),
            denials: Arc::new(RecentDenials::new(false)),
            cardinality: Arc::default(),
            options,
            warnings: Arc::default(),
            heartbeat: Heartbeat::default(),
        };
        let clock = ManualClock::starting_at(Timestamp::from_micros(1_800_000_000_000_000));
        // Every decision must be the server's, or a fallback.
        let rule = Rule::new("api", limit).with_denial_cache(false);
        let rules = RuleSet::new([rule.with_on_failure(policy).with_static_limit(static_limit)]).unwrap();
        let limiter = Limiter::new(rules, store)
            .with_instances(INSTANCES)
            .with_fallback_store(MemoryStore::new().with_clock(clock));
        Self {
            limiter,
            server,
            policy,
            timeout,
            max_in_flight,
            costs: AtomicU64::new(0),
            by_store: AtomicU64::new(0),
            by_fallback: AtomicU64::new(0),
            calls_by_fallback: AtomicU64::new(0),
            history: Mutex::default(),
        }
    }

    /// Changes the behavior of the server until `end`; then it is healthy.
    pub(super) async fn run_server(self: Arc<Self>, mut rng: Rng, end: Instant) -> Result<(), String> {
        if one_in(&mut rng, 10) {
            // The server stays healthy. Callers with short deadlines must not open the breaker.
            timer::sleep(end - timer::now()).await;
            let state = &self.limiter.store().server_states()[0];
            return if state.opened == 0 {
                Ok(())
            } else {
                Err(format!("the breaker of a healthy server opened: {state:?}"))
            };
        }
        while timer::now() < end {
            self.server.set_behavior(pick(&mut rng, &BEHAVIORS));
            if one_in(&mut rng, 4) {
                self.server.flush_scripts();
            }
            timer::sleep(millis(&mut rng, 120)).await;
        }
        if one_in(&mut rng, 10) {
            let outages = [ServerBehavior::Down, ServerBehavior::Unreachable, ServerBehavior::Hangs];
            self.server.set_behavior(pick(&mut rng, &outages));
            timer::sleep(Duration::from_secs(10)).await;
        }
        self.server.set_behavior(HEALTHY);
        Ok(())
    }

    /// One caller: calls until `end`, and sometimes stops waiting for the result.
    pub(super) async fn run_caller(self: Arc<Self>, mut rng: Rng, end: Instant) -> Result<(), String> {
        while timer::now() < end {
            timer::sleep(millis(&mut rng, 30)).await;
            let wait = if one_in(&mut rng, 10) { millis(&mut rng, 30) } else { self.timeout * 2 };
            let max_short_timeout = pick(&mut rng, &[1, 5, 20]);
            let timeout =
                if one_in(&mut rng, 4) { self.timeout.min(millis(&mut rng, max_short_timeout)) } else { self.timeout };
            timer::timeout(wait, self.call(timeout)).await.unwrap_or(Ok(()))?;
        }
        Ok(())
    }

    /// Makes one call, and checks its result against every promise.
    async fn call(&self, timeout: Duration) -> Result<(), String> {
        let cost = self.next_cost();
        let start = CallStart { at: timer::now(), breaker: self.breaker(), counters: self.server.counters() };
        let request = Request::new("").with_cost(cost);
        let result = self.limiter.check_plan(&self.limiter.plan(&request).with_timeout(timeout)).await;
        let took = start.at.elapsed();
        let expect = |holds: bool, promise: &str| {
            let failure = || format!("{promise}: cost {cost}, {start:?}, took {took:?}, got {result:?}");
            if holds { Ok(()) } else { Err(failure()) }
        };
        expect(took <= timeout, "no call takes longer than its timeout")?;
        let fails_fast = start.breaker != BreakerState::Open || took.is_zero();
        expect(fails_fast, "calls fail at once while the breaker is open")?;
        let given_up = self.server.is_healthy_since_connect() && self.breaker() == BreakerState::Open;
        expect(!given_up, "the breaker is not open if the server has been healthy since it was connected")?;
        expect(self.in_flight() <= self.max_in_flight, "no more calls are in flight than allowed")?;
        expect(self.server.violation().is_none(), &self.server.violation().unwrap_or_default())?;
        expect(self.opens_after_timeouts(&start, &result), "three timeouts in a row open the breaker")?;
        expect(
            self.trials_are_sequential(&start, &result),
            "a half-open breaker admits one call at a time, and a response closes it",
        )?;
        let served = self.server.served_call(cost);
        let replied = served.and_then(|call| call.replied_at).is_some_and(|at| at < timer::now());
        match &result {
            Ok(decision) if decision.degraded().is_none() => {
                let is_same = served.is_some_and(|call| call.admitted == decision.is_allowed());
                expect(is_same, "the decision is the server's")?;
                self.by_store.fetch_add(if decision.is_allowed() { cost } else { 0 }, Ordering::Relaxed);
            }
            _ => {
                expect(!replied, "a reply that has arrived is used")?;
                if result.as_ref().is_err_and(|error| !error.is_possibly_applied()) {
                    self.history.lock().unwrap().not_applied.push(cost);
                }
                expect(self.follows_policy(cost, &result), "without the store, the failure policy decides")?;
            }
        }
        Ok(())
    }

    fn next_cost(&self) -> u64 {
        self.costs.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn breaker(&self) -> BreakerState {
        self.limiter.store().server_states()[0].breaker
    }

    fn in_flight(&self) -> usize {
        self.limiter.store().server_states()[0].in_flight
    }
}

/// Promises
impl Scenario {
    /// Whether the breaker is open if the last three calls timed out. Only calls count that waited for the whole response
    /// timeout, while the server neither replied nor was connected to since the first of them started.
    fn opens_after_timeouts(&self, start: &CallStart, result: &Result<Decision, StoreError>) -> bool {
        let counters = self.server.counters();
        let waited = start.at.elapsed() >= self.timeout / 5 * 4;
        let is_timeout =
            waited && start.counters == counters && error_kind(result) == Some(StoreErrorKind::Unavailable);
        let mut history = self.history.lock().unwrap();
        let previous = if history.counters == counters { history.timeouts } else { 0 };
        history.timeouts = previous + u32::from(is_timeout);
        history.counters = counters;
        history.timeouts < 3 || self.breaker() != BreakerState::Closed
    }

    /// Whether a trial call of a half-open breaker was the only one, and closed the breaker if it got a response.
    fn trials_are_sequential(&self, start: &CallStart, result: &Result<Decision, StoreError>) -> bool {
        let counters = self.server.counters();
        let mut history = self.history.lock().unwrap();
        let is_trial = start.breaker == BreakerState::HalfOpen && !start.at.elapsed().is_zero();
        if !is_trial || start.counters.connections != counters.connections {
            return true;
        }
        let is_alone =
            history.trial.is_none_or(|(connection, ended)| connection != counters.connections || ended <= start.at);
        history.trial = Some((counters.connections, timer::now()));
        let responded = matches!(error_kind(result), None | Some(StoreErrorKind::Refused));
        let lost_connection = start.counters.lost_connections != counters.lost_connections;
        is_alone && (!responded || lost_connection || self.breaker() == BreakerState::Closed)
    }

    /// Whether a result without the store is what the failure policy prescribes.
    fn follows_policy(&self, cost: u64, result: &Result<Decision, StoreError>) -> bool {
        let Ok(decision) = result else {
            return self.policy == OnFailure::Closed;
        };
        if decision.is_allowed() {
            self.by_fallback.fetch_add(cost, Ordering::Relaxed);
            self.calls_by_fallback.fetch_add(1, Ordering::Relaxed);
        }
        let kinds = [StoreErrorKind::Unavailable, StoreErrorKind::Overloaded, StoreErrorKind::Refused];
        let is_prescribed = match self.policy {
            // An overload opens no rule.
            OnFailure::Open | OnFailure::Degraded => {
                decision.is_allowed() || decision.degraded() == Some(StoreErrorKind::Overloaded)
            }
            OnFailure::Local => self.by_fallback.load(Ordering::Relaxed) <= LIMIT,
            OnFailure::Share => self.by_fallback.load(Ordering::Relaxed) <= LIMIT / u64::from(INSTANCES),
            OnFailure::Static => self.calls_by_fallback.load(Ordering::Relaxed) <= STATIC_LIMIT,
            _ => false,
        };
        is_prescribed && decision.degraded().is_some_and(|kind| kinds.contains(&kind))
    }

    /// Checks that a healthy server is used again within [`MAX_RECOVERY`].
    pub(super) async fn check_recovery(&self) -> Result<(), String> {
        let started = timer::now();
        loop {
            let request = Request::new("").with_cost(self.next_cost());
            if self.limiter.store().decide(&self.limiter.plan(&request)).await.is_ok() {
                return Ok(());
            }
            if started.elapsed() > MAX_RECOVERY {
                let state = &self.limiter.store().server_states()[0];
                return Err(format!("a healthy server is not used after {:?}: {state:?}", started.elapsed()));
            }
            timer::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Checks the sums at the end: no more was admitted than the server counted, and no more than the limit.
    pub(super) fn check_totals(&self) -> Result<(), String> {
        let (admitted, taken) = (self.by_store.load(Ordering::Relaxed), self.server.taken());
        if admitted > taken || taken > LIMIT {
            return Err(format!("the store admitted {admitted}, and the server counted {taken} of {LIMIT}"));
        }
        let history = self.history.lock().unwrap();
        if let Some(cost) = history.not_applied.iter().find(|cost| self.server.served_call(**cost).is_some()) {
            return Err(format!("the call of cost {cost} ran, but was reported as not applied"));
        }
        self.server.violation().map_or(Ok(()), Err)
    }
}

/// How the store failed, if it did.
fn error_kind(result: &Result<Decision, StoreError>) -> Option<StoreErrorKind> {
    match result {
        Ok(decision) => decision.degraded(),
        Err(error) => Some(error.kind()),
    }
}
