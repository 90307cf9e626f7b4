//! `Scenario`: callers and a server that may misbehave, and the promises that every result is checked against.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::join_all;
use tidegate::spi::Store;
use tidegate::{
    Decision, Limit, Limiter, ManualClock, MemoryStore, OnFailure, Request, Rule, RuleSet, StoreError, StoreErrorKind,
    Timestamp,
};
use tokio::time::Instant;

use super::caller::{CallerMood, HeldCall};
use super::random::{millis, one_in, pick};
use super::simulated_server::{HEALTHY, ServerBehavior, ServerCounters, SimulatedServer};
use crate::breaker::BreakerState;
use crate::connector::Endpoint;
use crate::cross_slot::RecentDenials;
use crate::denial_cache::DenialCache;
use crate::heartbeat::Heartbeat;
use crate::node::RedisNode;
use crate::options::RedisOptions;
use crate::router::Router;
use crate::server_state::ServerState;
use crate::store::RedisStore;
use crate::timer;

/// The limit of each user: less than most scenarios request.
pub(super) const LIMIT: u64 = 2_000;
/// The limit of the `static` failure policy.
const STATIC_LIMIT: u64 = 7;
const INSTANCES: u32 = 3;

/// A user of whom only one call is made at a time. A flood by others does not affect it.
pub(super) const BYSTANDER: &str = "bystander";

/// A healthy server is used again after this time: the longest reconnect delay, a connection attempt that was already
/// running, and a reply.
const MAX_RECOVERY: Duration = Duration::from_millis(1_000 + 1_000 + 200);

/// The behaviors that a server changes between. Three of eighteen times it is healthy.
const BEHAVIORS: [ServerBehavior; 18] = [
    HEALTHY,
    HEALTHY,
    HEALTHY,
    ServerBehavior::Responds(19),
    ServerBehavior::Responds(30),
    ServerBehavior::Responds(60),
    ServerBehavior::Drips(40),
    ServerBehavior::Trickles,
    ServerBehavior::AnswersSome,
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
    pub(super) budget: Duration,
    queue_wait: Duration,
    max_waiting: usize,
    /// Whether every reply comes within its budget.
    answers_in_time: bool,
    /// The last cost used. Each call has a cost of its own, which identifies it at the server.
    pub(super) costs: AtomicU64,
    pub(super) sums: Mutex<Sums>,
}

/// What was admitted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    /// The sum of the costs that the store admitted.
    by_store: u64,
    /// The sums of the costs that memory admitted without the store, by user.
    by_memory: BTreeMap<String, u64>,
    /// The number of calls that the static limit admitted.
    by_static_limit: u64,
    /// The costs of calls that were withdrawn or reported as not applied.
    not_applied: Vec<u64>,
}

/// The situation when a call started.
#[derive(Clone, Debug)]
struct CallStart {
    at: Instant,
    server: ServerState,
    counters: ServerCounters,
}

/// Running
impl Scenario {
    pub(super) fn new(rng: &mut Rng) -> Self {
        let limit = Limit::fixed_window(LIMIT, Duration::from_secs(86_400)).unwrap();
        let static_limit = Limit::fixed_window(STATIC_LIMIT, Duration::from_secs(86_400)).unwrap();
        let policies = [
            OnFailure::Open,
            OnFailure::Closed,
            OnFailure::Local,
            OnFailure::Share,
            OnFailure::Static,
            OnFailure::Degraded,
        ];
        let policy = pick(rng, &policies);
        let budget = Duration::from_millis(pick(rng, &[25, 25, 25, 15, 60]));
        let answers_in_time = one_in(rng, 3);
        let queue_wait = if answers_in_time { budget * 10 } else { pick(rng, &[budget, budget * 4, budget * 10]) };
        let max_waiting = pick(rng, &[4, 16, 4096]);
        let server = SimulatedServer::new(rng.u64(..));
        let options = RedisOptions::new()
            .with_timeout(budget)
            .with_queue_wait(queue_wait)
            .with_max_waiting(max_waiting)
            .with_heartbeats(false);
        let node = RedisNode::new("simulated", Endpoint::Simulated(Arc::clone(&server)), &options, true);
        let store = RedisStore {
            period_clock: Arc::default(),
            denial_cache: Arc::new(DenialCache::new(None)),
            router: Router::Single(node),
            denials: Arc::new(RecentDenials::new(false)),
            cardinality: Arc::default(),
            options,
            warnings: Arc::default(),
            heartbeat: Heartbeat::default(),
            background_releases: Arc::default(),
            ledger: Arc::default(),
            adjusting: Arc::default(),
        };
        let clock = ManualClock::starting_at(Timestamp::from_micros(1_800_000_000_000_000));
        // Every decision must be the server's, or a fallback.
        let rule = Rule::new("api", limit).with_per(["user"]).with_denial_cache(false);
        let rule = rule.with_on_failure(policy).with_static_limit(static_limit);
        let limiter = Limiter::new(RuleSet::new([rule]).unwrap(), store)
            .with_instances(INSTANCES)
            .with_fallback_store(MemoryStore::new().with_clock(clock));
        Self {
            limiter,
            server,
            policy,
            budget,
            queue_wait,
            max_waiting,
            answers_in_time,
            costs: AtomicU64::new(0),
            sums: Mutex::default(),
        }
    }

    /// Changes the behavior of the server until `end`; then it is healthy.
    pub(super) async fn run_server(self: Arc<Self>, mut rng: Rng, end: Instant) -> Result<(), String> {
        let just_in_time = self.budget.as_millis() as u64 - 1;
        let in_time = [
            HEALTHY,
            ServerBehavior::Responds(5),
            ServerBehavior::Responds(just_in_time),
            ServerBehavior::Drips(just_in_time),
        ];
        while timer::now() < end {
            let behavior = if self.answers_in_time { pick(&mut rng, &in_time) } else { pick(&mut rng, &BEHAVIORS) };
            self.server.set_behavior(behavior);
            if one_in(&mut rng, 4) {
                self.server.flush_scripts();
            }
            timer::sleep(millis(&mut rng, 120)).await;
        }
        if !self.answers_in_time && one_in(&mut rng, 10) {
            let outages = [ServerBehavior::Down, ServerBehavior::Unreachable, ServerBehavior::Hangs];
            self.server.set_behavior(pick(&mut rng, &outages));
            timer::sleep(Duration::from_secs(10)).await;
        }
        self.server.set_behavior(HEALTHY);
        Ok(())
    }

    /// Calls of one user, in bursts of up to `max_burst`, until `end`.
    pub(super) async fn run_caller(
        self: Arc<Self>,
        mut rng: Rng,
        user: String,
        max_burst: u64,
        end: Instant,
    ) -> Result<(), String> {
        let mut held = Vec::new();
        while timer::now() < end {
            timer::sleep(millis(&mut rng, 30)).await;
            let burst = rng.u64(1..=max_burst);
            let calls = (0..burst).map(|_| {
                let mood =
                    if user == BYSTANDER { CallerMood::Patient } else { CallerMood::draw(&mut rng, self.budget) };
                self.call(&user, mood)
            });
            for result in join_all(calls.collect::<Vec<_>>()).await {
                held.extend(result?);
            }
        }
        Ok(())
    }
}

/// Promises
impl Scenario {
    /// Makes one call, and checks its result against every promise. Returns a future that its caller holds and never polls
    /// again.
    async fn call(self: &Arc<Self>, user: &str, mood: CallerMood) -> Result<Option<HeldCall>, String> {
        let cost = self.costs.fetch_add(1, Ordering::Relaxed) + 1;
        let start = CallStart { at: timer::now(), server: self.server_state(), counters: self.server.counters() };
        let scenario = Arc::clone(self);
        let (owner, timeout) = (user.to_owned(), mood.timeout());
        let call: HeldCall = Box::pin(async move {
            let request = Request::new("").with_attribute("user", &owner).with_cost(cost);
            let plan = scenario.limiter.plan(&request);
            scenario.limiter.plans().check(&timeout.map_or(plan.clone(), |timeout| plan.with_timeout(timeout))).await
        });
        match mood.wait_for(call).await {
            Ok(result) => self.check_result(user, cost, timeout, &start, &result).map(|()| None),
            Err(unfinished) if mood == CallerMood::Holds => Ok(Some(unfinished)),
            Err(unfinished) => {
                let waiting = self.server_state().waiting;
                drop(unfinished);
                if self.server_state().waiting < waiting {
                    self.sums.lock().unwrap().not_applied.push(cost);
                }
                Ok(None)
            }
        }
    }

    fn check_result(
        &self,
        user: &str,
        cost: u64,
        timeout: Option<Duration>,
        start: &CallStart,
        result: &Result<Decision, StoreError>,
    ) -> Result<(), String> {
        let (took, state) = (start.at.elapsed(), self.server_state());
        let expect = |holds: bool, promise: &str| {
            let failure = || {
                format!(
                    "{promise}: {user}, cost {cost}, timeout {timeout:?}, {start:?}, took {took:?}, now {state:?}, got {result:?}"
                )
            };
            if holds { Ok(()) } else { Err(failure()) }
        };
        let is_silent = start.counters == self.server.counters();
        // A plan that is sent at the end of its time has a budget for its reply.
        let end = self.queue_wait + self.budget * 4;
        expect(took <= timeout.unwrap_or(end + self.budget), "no call takes longer than it may")?;
        expect(
            !is_silent || took <= self.budget * 3 / 2,
            "no call waits for a silent server for longer than its budget",
        )?;
        let fails_fast = start.server.breaker != BreakerState::Open || took.is_zero();
        expect(fails_fast, "calls fail at once while the breaker is open")?;
        let given_up = self.server.is_healthy_since_connect() && state.breaker == BreakerState::Open;
        expect(!given_up, "the breaker is not open if the server has been healthy since it was connected")?;
        expect(!self.answers_in_time || state.opened == 0, "the breaker of a server that answers in time never opens")?;
        expect(state.waiting <= 2 * self.max_waiting, "no more plans wait than allowed")?;
        expect(self.server.violation().is_none(), &self.server.violation().unwrap_or_default())?;
        let served = self.server.served_call(cost);
        let replied = served.and_then(|call| call.replied_at).is_some_and(|at| at < timer::now());
        let kind = match result {
            Ok(decision) => decision.degraded(),
            Err(error) => Some(error.kind()),
        };
        let Some(kind) = kind else {
            let is_allowed = result.as_ref().is_ok_and(Decision::is_allowed);
            expect(served.is_some_and(|call| call.admitted == is_allowed), "the decision is the server's")?;
            self.sums.lock().unwrap().by_store += if is_allowed { cost } else { 0 };
            return Ok(());
        };
        expect(!replied, "a reply that has arrived is used")?;
        let has_opened =
            state.opened > start.server.opened || start.server.breaker != BreakerState::Closed || took >= end;
        expect(
            timeout.is_some() || kind != StoreErrorKind::Unavailable || has_opened,
            "a call fails as unavailable only if the breaker opens or its time is over",
        )?;
        let is_overload = kind == StoreErrorKind::Overloaded;
        expect(!self.answers_in_time || timeout.is_some() || is_overload, "a server that answers in time decides")?;
        expect(
            !self.answers_in_time || user != BYSTANDER,
            "a flood by others does not affect a plan that is alone with its key",
        )?;
        if is_overload || result.as_ref().is_err_and(|error| !error.is_possibly_applied()) {
            self.sums.lock().unwrap().not_applied.push(cost);
        }
        expect(self.follows_policy(user, cost, kind, result), "without the store, the failure policy decides")
    }

    /// Whether a result without the store is what the failure policy prescribes.
    fn follows_policy(
        &self,
        user: &str,
        cost: u64,
        kind: StoreErrorKind,
        result: &Result<Decision, StoreError>,
    ) -> bool {
        let is_overload = kind == StoreErrorKind::Overloaded;
        let decision = match result {
            Err(error) => return self.policy == OnFailure::Closed || (is_overload && error.is_crowded()),
            Ok(decision) => decision,
        };
        let mut sums = self.sums.lock().unwrap();
        match self.policy {
            OnFailure::Open | OnFailure::Degraded if !is_overload => decision.is_allowed(),
            OnFailure::Static => {
                sums.by_static_limit += u64::from(decision.is_allowed());
                sums.by_static_limit <= STATIC_LIMIT
            }
            OnFailure::Closed => false,
            policy => {
                let limit = if policy == OnFailure::Share { LIMIT / u64::from(INSTANCES) } else { LIMIT };
                let sum = sums.by_memory.entry(user.to_owned()).or_default();
                *sum += if decision.is_allowed() { cost } else { 0 };
                *sum <= limit
            }
        }
    }

    pub(super) fn server_state(&self) -> ServerState {
        self.limiter.store().server_states().remove(0)
    }

    /// Checks that a healthy server is used again within [`MAX_RECOVERY`].
    pub(super) async fn check_recovery(&self) -> Result<(), String> {
        let started = timer::now();
        loop {
            let cost = self.costs.fetch_add(1, Ordering::Relaxed) + 1;
            let request = Request::new("").with_attribute("user", "last").with_cost(cost);
            if self.limiter.store().decide(&self.limiter.plan(&request)).await.is_ok() {
                break;
            }
            if started.elapsed() > MAX_RECOVERY {
                let state = self.server_state();
                return Err(format!("a healthy server is not used after {:?}: {state:?}", started.elapsed()));
            }
            timer::sleep(Duration::from_millis(5)).await;
        }
        // Whatever callers did, the server answers everything that was sent.
        timer::sleep(self.budget * 4).await;
        let state = self.server_state();
        if (state.waiting, state.in_flight, state.breaker) != (0, 0, BreakerState::Closed) {
            return Err(format!("something is left over: {state:?}"));
        }
        Ok(())
    }

    /// Checks the sums at the end: no more was admitted than the server counted, and no more than the limit.
    pub(super) fn check_totals(&self) -> Result<(), String> {
        let (sums, taken) = (self.sums.lock().unwrap(), self.server.taken());
        if sums.by_store > taken.iter().sum() || taken.iter().any(|taken| *taken > LIMIT) {
            return Err(format!("the store admitted {}, and the server counted {taken:?} of {LIMIT}", sums.by_store));
        }
        if let Some(cost) = sums.not_applied.iter().find(|cost| self.server.served_call(**cost).is_some()) {
            return Err(format!("the plan of cost {cost} ran, but was withdrawn or reported as not applied"));
        }
        self.server.violation().map_or(Ok(()), Err)
    }
}
