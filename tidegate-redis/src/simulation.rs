//! The client side of a store whose server meets its fate, in simulated time: the real limiter, store, breaker, line and
//! connection, on a server that answers late, never, in the middle, or not at all. Each seed is one story, and the same seed
//! is the same story again.
//!
//! Every call has a cost of its own, by which it is known at the server.

mod draw;
mod world;

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::spi::Store;
use tidegate::{
    Decision, Limit, Limiter, ManualClock, MemoryStore, OnFailure, Request, Rule, RuleSet, StoreError, StoreErrorKind,
    Timestamp,
};
use tokio::time::Instant;

use crate::across::Denials;
use crate::breaker::BreakerState;
use crate::heart::Heart;
use crate::link::Link;
use crate::node::Node;
use crate::options::RedisOptions;
use crate::patience;
use crate::store::RedisStore;
use crate::way::Destination;
use draw::Draw;
pub(crate) use world::World;
use world::{Fate, Past, WELL};

/// How many stories `cargo test` tells, unless `TIDEGATE_STORIES` says how many.
const STORIES: u64 = 4_000;

/// What the store may hand out, and what a static rule may: less than is asked for in most stories.
const AMOUNT: u64 = 600;
const CAP: u64 = 7;
const INSTANCES: u32 = 3;

/// What never holds longer: the longest rest, an attempt to connect that was begun before, and an answer.
const RECOVERY: Duration = Duration::from_millis(1_000 + 1_000 + 200);

/// One story.
struct Story {
    limiter: Limiter<RedisStore>,
    world: Arc<World>,
    policy: OnFailure,
    budget: Duration,
    cap: usize,
    /// The costs that were given out.
    costs: AtomicU64,
    /// What passed by the store's word, and without it.
    by_store: AtomicU64,
    by_itself: AtomicU64,
    passed_by_itself: AtomicU64,
    memory: Mutex<Memory>,
}

/// What a caller remembers of those before.
#[derive(Default)]
struct Memory {
    /// Calls in a row that waited in vain, and what had happened until the last of them.
    silent: u32,
    past: Past,
    /// The last call that tried a server that was back: on which connection, and until when.
    trial: Option<(u64, Instant)>,
    /// The calls of which it was said that they were not carried out.
    unapplied: Vec<u64>,
}

/// How it was when a call began.
#[derive(Clone, Copy, Debug)]
struct Beginning {
    at: Instant,
    breaker: BreakerState,
    past: Past,
}

#[test]
fn whatever_becomes_of_the_server_the_client_keeps_its_promises() {
    let stories = asked_for("TIDEGATE_STORIES").unwrap_or(STORIES);
    let seeds = asked_for("TIDEGATE_SEED").map_or(1..stories + 1, |seed| seed..seed + 1);
    std::panic::set_hook(Box::new(|_| {}));
    let told = std::thread::scope(|scope| {
        let tell = |half: u64| {
            let mut mine = seeds.clone().filter(move |seed| seed % 2 == half);
            scope.spawn(move || mine.find_map(|seed| tell(seed).err().map(|wrong| (seed, wrong))))
        };
        [tell(0), tell(1)].map(|half| half.join().expect("panics are caught"))
    });
    let _ = std::panic::take_hook();
    if let Some((seed, wrong)) = told.into_iter().flatten().min() {
        panic!("seed {seed}: {wrong}\nagain: TIDEGATE_SEED={seed} cargo test -p tidegate-redis --lib simulation");
    }
}

#[test]
fn the_same_seed_is_the_same_story() {
    let told = |seed| {
        let story = told(seed).unwrap();
        let counts = [&story.costs, &story.by_store, &story.by_itself].map(|count| count.load(Ordering::Relaxed));
        (counts, story.world.taken(), story.limiter.store().state())
    };
    for seed in 1..20 {
        assert_eq!(told(seed), told(seed), "seed {seed}");
    }
}

/// Tells one story; what went wrong in it.
fn tell(seed: u64) -> Result<(), String> {
    let told = std::panic::catch_unwind(AssertUnwindSafe(|| told(seed).map(drop)));
    told.unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(format!("panicked: {}", words.unwrap_or("without a word")))
    })
}

fn told(seed: u64) -> Result<Arc<Story>, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut draw = Draw::new(seed);
        let story = Arc::new(Story::begin(&mut draw));
        let (callers, until) = (draw.of(&[1, 2, 3, 8]), patience::now() + draw.millis(500));
        let mut callers: Vec<_> = (0..callers)
            .map(|number| tokio::spawn(Arc::clone(&story).call(Draw::new(seed ^ (number + 1) << 32), until)))
            .collect();
        callers.push(tokio::spawn(Arc::clone(&story).turn_of_fate(draw, until)));
        for caller in callers {
            caller.await.map_err(|error| format!("a caller panicked: {error}"))??;
        }
        story.recover().await?;
        story.sum_up()?;
        Ok(story)
    })
}

impl Story {
    fn begin(draw: &mut Draw) -> Self {
        let limit = Limit::fixed_window(AMOUNT, Duration::from_secs(86_400)).unwrap();
        let emergency = Limit::fixed_window(CAP, Duration::from_secs(86_400)).unwrap();
        let policies = [OnFailure::Open, OnFailure::Closed, OnFailure::Local, OnFailure::Static, OnFailure::Degraded];
        let (policy, budget) = (draw.of(&policies), Duration::from_millis(draw.of(&[25, 25, 25, 15, 60])));
        let (cap, world) = (draw.of(&[1, 2, 4, 1024]), World::new(draw.next(), &limit));
        let options = RedisOptions::new().budget(budget).most_in_flight(cap as usize).heartbeats(false);
        let node = Node::new("simulated", Destination::Simulated(Arc::clone(&world)), &options);
        let link = Link::Single(node);
        let denials = Arc::new(Denials::new(false));
        let store = RedisStore {
            link,
            denials,
            flood: Arc::default(),
            options,
            warnings: Arc::default(),
            heart: Heart::default(),
        };
        let clock = ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000));
        let rules = RuleSet::new([Rule::new("api", limit).on_failure(policy).emergency(emergency)]).unwrap();
        let limiter = Limiter::new(rules, store).instances(INSTANCES).fallback(MemoryStore::new().clock(clock));
        Self {
            limiter,
            world,
            policy,
            budget,
            cap: cap as usize,
            costs: AtomicU64::new(0),
            by_store: AtomicU64::new(0),
            by_itself: AtomicU64::new(0),
            passed_by_itself: AtomicU64::new(0),
            memory: Mutex::default(),
        }
    }

    /// The server's life.
    async fn turn_of_fate(self: Arc<Self>, mut draw: Draw, until: Instant) -> Result<(), String> {
        let fates = [
            WELL,
            WELL,
            WELL,
            Fate::Answers(19),
            Fate::Answers(30),
            Fate::Answers(60),
            Fate::Hangs,
            Fate::Swallows,
            Fate::BreaksBefore,
            Fate::BreaksAfter,
            Fate::BreaksMidway,
            Fate::Refuses("OOM"),
            Fate::Refuses("READONLY"),
            Fate::Dead,
            Fate::Unreachable,
        ];
        if draw.one_in(10) {
            // Nothing happens. Callers in a hurry are no reason not to ask it any more.
            patience::rest(until - patience::now()).await;
            let state = &self.limiter.store().state()[0];
            return if state.opened == 0 {
                Ok(())
            } else {
                Err(format!("a server that is well is not asked: {state:?}"))
            };
        }
        while patience::now() < until {
            self.world.meets(draw.of(&fates));
            if draw.one_in(4) {
                self.world.forgets_scripts();
            }
            patience::rest(draw.millis(120)).await;
        }
        if draw.one_in(10) {
            self.world.meets(draw.of(&[Fate::Dead, Fate::Unreachable, Fate::Hangs]));
            patience::rest(Duration::from_secs(10)).await;
        }
        self.world.meets(WELL);
        Ok(())
    }

    /// One caller: it asks again and again, and sometimes goes away before it is answered.
    async fn call(self: Arc<Self>, mut draw: Draw, until: Instant) -> Result<(), String> {
        while patience::now() < until {
            patience::rest(draw.millis(30)).await;
            let patience = if draw.one_in(10) { draw.millis(30) } else { self.budget * 2 };
            let hurry = draw.of(&[1, 5, 20]);
            let within = if draw.one_in(4) { self.budget.min(draw.millis(hurry)) } else { self.budget };
            let asked = patience::within(patience, self.ask(within)).await;
            asked.unwrap_or(Ok(()))?;
        }
        Ok(())
    }

    /// Asks once, and holds the answer against every promise.
    async fn ask(&self, within: Duration) -> Result<(), String> {
        let cost = self.costs.fetch_add(1, Ordering::Relaxed) + 1;
        let began = Beginning { at: patience::now(), breaker: self.state().0, past: self.world.past() };
        let request = Request::new("").cost(cost);
        let answer = self.limiter.decide(&self.limiter.plan(&request).within(within)).await;
        let took = began.at.elapsed();
        let expect = |holds: bool, promise: &str| {
            let words = || format!("{promise}: cost {cost}, {began:?}, took {took:?}, got {answer:?}");
            if holds { Ok(()) } else { Err(words()) }
        };
        let known = began.breaker == BreakerState::Open;
        expect(took <= within, "nobody waits longer than the budget")?;
        expect(!known || took.is_zero(), "nobody waits for a server that is known to be silent")?;
        let given_up = self.world.is_fine() && self.state().0 == BreakerState::Open;
        expect(!given_up, "a server that has been well since it was connected to is asked")?;
        expect(self.state().1 <= self.cap, "never more are on their way than may be")?;
        expect(self.world.wrong().is_none(), &self.world.wrong().unwrap_or_default())?;
        expect(self.opens_in_time(&began, &answer), "three silent calls in a row are enough")?;
        expect(
            self.tries_one_by_one(&began, &answer),
            "one call at a time tries a server that is back, and its answer counts",
        )?;
        let seen = self.world.seen(cost);
        let told = seen.and_then(|seen| seen.told).is_some_and(|told| told < patience::now());
        match &answer {
            Ok(decision) if decision.degraded().is_none() => {
                expect(
                    seen.is_some_and(|seen| seen.admitted == decision.is_allowed()),
                    "what is said is what was decided",
                )?;
                self.by_store.fetch_add(if decision.is_allowed() { cost } else { 0 }, Ordering::Relaxed);
            }
            _ => {
                expect(!told, "what the store has decided is what counts")?;
                if answer.as_ref().is_err_and(|error| !error.is_possibly_applied()) {
                    self.memory.lock().unwrap().unapplied.push(cost);
                }
                expect(self.stands_in(cost, &answer), "each policy does what it says")?;
            }
        }
        Ok(())
    }

    /// Whether the breaker is open by now if the last calls were silent: each waited for as long as it may, and since the first of
    /// them began, the server neither said anything nor was connected to.
    fn opens_in_time(&self, began: &Beginning, answer: &Result<Decision, StoreError>) -> bool {
        let now = self.world.past();
        let waited = began.at.elapsed() >= self.budget / 5 * 4;
        let silent = waited && began.past == now && kind(answer) == Some(StoreErrorKind::Unavailable);
        let mut memory = self.memory.lock().unwrap();
        let before = if memory.past == now { memory.silent } else { 0 };
        memory.silent = before + u32::from(silent);
        memory.past = now;
        memory.silent < 3 || self.state().0 != BreakerState::Closed
    }

    /// Whether a call that tried a server that is back was the only one, and closed the breaker if it was answered.
    fn tries_one_by_one(&self, began: &Beginning, answer: &Result<Decision, StoreError>) -> bool {
        let now = self.world.past();
        let mut memory = self.memory.lock().unwrap();
        let is_trial = began.breaker == BreakerState::HalfOpen && !began.at.elapsed().is_zero();
        if !is_trial || began.past.connections != now.connections {
            return true;
        }
        let alone = memory.trial.is_none_or(|(line, ended)| line != now.connections || ended <= began.at);
        memory.trial = Some((now.connections, patience::now()));
        let answered = matches!(kind(answer), None | Some(StoreErrorKind::Refused));
        alone && (!answered || began.past.breaks != now.breaks || self.state().0 == BreakerState::Closed)
    }

    /// Whether an answer without the store is what the policy says.
    fn stands_in(&self, cost: u64, answer: &Result<Decision, StoreError>) -> bool {
        let Ok(decision) = answer else {
            return self.policy == OnFailure::Closed;
        };
        if decision.is_allowed() {
            self.by_itself.fetch_add(cost, Ordering::Relaxed);
            self.passed_by_itself.fetch_add(1, Ordering::Relaxed);
        }
        let kinds = [StoreErrorKind::Unavailable, StoreErrorKind::Overloaded, StoreErrorKind::Refused];
        let passes = match self.policy {
            OnFailure::Open | OnFailure::Degraded => decision.is_allowed(),
            OnFailure::Local => self.by_itself.load(Ordering::Relaxed) <= AMOUNT / u64::from(INSTANCES),
            OnFailure::Static => self.passed_by_itself.load(Ordering::Relaxed) <= CAP,
            _ => false,
        };
        passes && decision.degraded().is_some_and(|kind| kinds.contains(&kind))
    }

    /// The server is well. How long until it is asked?
    async fn recover(&self) -> Result<(), String> {
        let began = patience::now();
        loop {
            let cost = self.costs.fetch_add(1, Ordering::Relaxed) + 1;
            let plan_of = Request::new("").cost(cost);
            if self.limiter.store().decide(&self.limiter.plan(&plan_of)).await.is_ok() {
                return Ok(());
            }
            if began.elapsed() > RECOVERY {
                return Err(format!(
                    "a server that is well is not asked after {:?}: {:?}",
                    began.elapsed(),
                    self.state()
                ));
            }
            patience::rest(Duration::from_millis(5)).await;
        }
    }

    fn sum_up(&self) -> Result<(), String> {
        let (said, taken) = (self.by_store.load(Ordering::Relaxed), self.world.taken());
        if said > taken || taken > AMOUNT {
            return Err(format!("{said} passed by the store's word, which took {taken} of {AMOUNT}"));
        }
        let memory = self.memory.lock().unwrap();
        if let Some(cost) = memory.unapplied.iter().find(|cost| self.world.seen(**cost).is_some()) {
            return Err(format!("the call of cost {cost} was carried out, and it was said that it was not"));
        }
        self.world.wrong().map_or(Ok(()), Err)
    }

    fn state(&self) -> (BreakerState, usize) {
        let state = &self.limiter.store().state()[0];
        (state.breaker, state.in_flight)
    }
}

/// How the store failed, if it did.
fn kind(answer: &Result<Decision, StoreError>) -> Option<StoreErrorKind> {
    match answer {
        Ok(decision) => decision.degraded(),
        Err(error) => Some(error.kind()),
    }
}

#[allow(clippy::disallowed_methods, reason = "which stories to tell is told by whoever starts it")]
fn asked_for(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|number| number.parse().expect("a number"))
}
