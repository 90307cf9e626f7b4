//! `Limiter::acquire` on concurrency limits: callers are woken by releases, ask again with back-off, are served in order, and leave
//! nothing held when they go away.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tidegate::spi::{FailingCall, FailingStore, Fault};
use tidegate::{
    AcquireOutcome, Ending, Grant, Limit, Limiter, ManualClock, MemoryStore, Rate, Request, Rule, RuleSet, StoreError,
};

use crate::fallback::store::{SwitchableStore, bucket, limiter, poll_once};

const LEASE: Duration = Duration::from_secs(30);
const MINUTE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

fn exports(max: u64) -> Rule {
    Rule::new("exports", Limit::concurrency(max, LEASE).unwrap())
}

/// A future with the number of times it was woken.
struct Caller<'f, T> {
    future: Pin<Box<dyn Future<Output = T> + 'f>>,
    wakes: Arc<Wakes>,
}

#[derive(Default)]
struct Wakes(AtomicU32);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl<'f, T> Caller<'f, T> {
    fn new(future: impl Future<Output = T> + 'f) -> Self {
        Self { future: Box::pin(future), wakes: Arc::default() }
    }

    fn poll(&mut self) -> Poll<T> {
        self.wakes.0.store(0, Ordering::Relaxed);
        self.future.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(&self.wakes))))
    }

    fn is_woken(&self) -> bool {
        self.wakes.0.load(Ordering::Relaxed) > 0
    }
}

type AcquireResult = Result<AcquireOutcome, StoreError>;

/// The lease of a request that was granted now.
fn granted(result: Poll<AcquireResult>) -> Grant {
    match result {
        Poll::Ready(Ok(AcquireOutcome::Granted(mut decision))) => decision.take_grant(),
        other => panic!("{other:?}"),
    }
}

fn hold(limiter: &Limiter<SwitchableStore>, request: &Request<'_>) -> Grant {
    poll_once(limiter.check(request)).unwrap().take_grant()
}

fn left(limiter: &Limiter<SwitchableStore>) -> Option<u64> {
    poll_once(limiter.peek(&Request::new(""))).unwrap().remaining()
}

#[test]
fn a_release_on_this_instance_wakes_the_caller_that_waits_even_after_the_rules_have_changed() {
    let clock = ManualClock::default();
    let store = SwitchableStore::new(&clock);
    let limiter = limiter(&store, &clock, [exports(1)]);
    let request = Request::new("");
    for reloaded in [false, true] {
        let mut lease = hold(&limiter, &request);
        let mut caller = Caller::new(limiter.acquire(&request, MINUTE, &clock));
        assert!(caller.poll().is_pending() && !caller.is_woken());
        if reloaded {
            let limiter = limiter.with_rules(RuleSet::new([exports(1)]).unwrap());
            limiter.spawn_end(lease, &Ending::Release);
        } else {
            poll_once(limiter.end(&mut lease, &Ending::Release)).unwrap();
        }
        assert!(caller.is_woken());
        poll_once(limiter.end(&mut granted(caller.poll()), &Ending::Release)).unwrap();
    }
}

/// The intervals double from 50 ms to a second, until the last moment.
#[test]
fn slots_that_are_released_elsewhere_are_found_by_polling_that_backs_off() {
    let clock = ManualClock::default();
    let store = SwitchableStore::new(&clock);
    let [here, elsewhere] = [(); 2].map(|()| limiter(&store, &clock, [exports(1)]));
    let request = Request::new("");
    let mut lease = hold(&elsewhere, &request);
    let mut caller = Caller::new(here.acquire(&request, Duration::from_secs(4), &clock));
    assert!(caller.poll().is_pending());
    for millis in [50, 100, 200, 400, 800, 1000, 1000] {
        let decisions = store.decisions.load(Ordering::Relaxed);
        clock.advance(Duration::from_millis(millis - 1));
        assert!(!caller.is_woken());
        assert!(caller.poll().is_pending());
        assert_eq!(store.decisions.load(Ordering::Relaxed), decisions);
        clock.advance(Duration::from_millis(1));
        assert!(caller.is_woken() && caller.poll().is_pending());
        assert_eq!(store.decisions.load(Ordering::Relaxed), decisions + 1);
    }
    poll_once(elsewhere.end(&mut lease, &Ending::Release)).unwrap();
    assert!(!caller.is_woken());
    clock.advance(Duration::from_millis(450));
    let _lease = granted(caller.poll());
}

#[test]
fn a_caller_gives_up_at_its_deadline_and_asks_once_more_then() {
    let clock = ManualClock::default();
    let store = SwitchableStore::new(&clock);
    let limiter = limiter(&store, &clock, [exports(1)]);
    let request = Request::new("");
    let _lease = hold(&limiter, &request);
    let mut caller = Caller::new(limiter.acquire(&request, POLL + POLL / 2, &clock));
    assert!(caller.poll().is_pending());
    clock.advance(POLL);
    assert!(caller.poll().is_pending());
    clock.advance(POLL / 2);
    let decisions = store.decisions.load(Ordering::Relaxed);
    assert!(matches!(caller.poll(), Poll::Ready(Ok(AcquireOutcome::TimedOut))));
    assert_eq!(store.decisions.load(Ordering::Relaxed), decisions + 1);
    let mut at_once = Caller::new(limiter.acquire(&request, Duration::ZERO, &clock));
    assert!(matches!(at_once.poll(), Poll::Ready(Ok(AcquireOutcome::Denied(_)))));
    let too_large = Request::new("").with_cost(2);
    let mut never = Caller::new(limiter.acquire(&too_large, MINUTE, &clock));
    assert!(matches!(never.poll(), Poll::Ready(Ok(AcquireOutcome::Denied(_)))));
}

#[test]
fn callers_are_served_in_order_of_arrival_whatever_their_weight() {
    let clock = ManualClock::default();
    let store = SwitchableStore::new(&clock);
    let limiter = limiter(&store, &clock, [exports(3)]);
    let [one, two, three] = [1, 2, 3].map(|cost| Request::new("").with_cost(cost));
    let (mut first, mut second) = (hold(&limiter, &two), hold(&limiter, &one));
    let mut large = Caller::new(limiter.acquire(&three, MINUTE, &clock));
    let mut small = [(); 2].map(|()| Caller::new(limiter.acquire(&one, MINUTE, &clock)));
    assert!(large.poll().is_pending() && small.iter_mut().all(|caller| caller.poll().is_pending()));
    poll_once(limiter.end(&mut first, &Ending::Release)).unwrap();
    assert!(large.poll().is_pending() && small.iter_mut().all(|caller| caller.poll().is_pending()));
    poll_once(limiter.end(&mut second, &Ending::Release)).unwrap();
    let mut large = granted(large.poll());
    assert!(small[0].is_woken() && !small[1].is_woken());
    assert!(small.iter_mut().all(|caller| caller.poll().is_pending()));
    poll_once(limiter.end(&mut large, &Ending::Release)).unwrap();
    let _leases = small.each_mut().map(|caller| granted(caller.poll()));
}

fn per_user() -> [Rule; 2] {
    [exports(1), Rule::new("requests", bucket(1)).with_per(["user"])]
}

/// Otherwise the slot would stay free until others ask again.
#[test]
fn a_caller_that_is_woken_and_goes_away_or_is_denied_by_another_limit_wakes_the_next() {
    for goes_away in [true, false] {
        let clock = ManualClock::default();
        let store = SwitchableStore::new(&clock);
        let limiter = limiter(&store, &clock, per_user());
        let [ann, bob, cyd] = ["ann", "bob", "cyd"].map(|user| Request::new("").with_attribute("user", user));
        let mut lease = hold(&limiter, &cyd);
        let [mut anns, mut bobs] = [&ann, &bob].map(|user| Caller::new(limiter.acquire(user, MINUTE, &clock)));
        assert!(anns.poll().is_pending() && bobs.poll().is_pending());
        poll_once(limiter.charge(&ann)).unwrap();
        poll_once(limiter.end(&mut lease, &Ending::Release)).unwrap();
        assert!(anns.is_woken() && !bobs.is_woken(), "the first of them is woken");
        if goes_away {
            drop(anns);
        } else {
            assert!(matches!(anns.poll(), Poll::Ready(Ok(AcquireOutcome::Denied(_)))));
        }
        assert!(bobs.is_woken());
        let _lease = granted(bobs.poll());
    }
}

#[test]
fn a_caller_that_goes_away_while_it_waits_leaves_nothing_held() {
    let clock = ManualClock::default();
    let store = SwitchableStore::new(&clock);
    let limiter = limiter(&store, &clock, [exports(1)]);
    let request = Request::new("");
    let mut lease = hold(&limiter, &request);
    let mut caller = Caller::new(limiter.acquire(&request, MINUTE, &clock));
    assert!(caller.poll().is_pending());
    poll_once(limiter.end(&mut lease, &Ending::Release)).unwrap();
    drop(caller);
    assert_eq!((left(&limiter), clock.pending_sleeps()), (Some(1), 0));
}

#[test]
fn a_caller_that_goes_away_during_the_call_releases_what_the_store_granted() {
    let clock = ManualClock::default();
    let store = FailingStore::new(MemoryStore::new().with_clock(clock.clone()));
    store.fail_if(|call| matches!(call, FailingCall::Decide(plan) if !plan.is_peek()).then_some(Fault::Silence));
    let limiter = Limiter::new(RuleSet::new([exports(1)]).unwrap(), store);
    let request = Request::new("");
    let remaining = || poll_once(limiter.peek(&request)).unwrap().remaining();
    let mut caller = Caller::new(limiter.acquire(&request, MINUTE, &clock));
    assert!(caller.poll().is_pending());
    assert_eq!(remaining(), Some(0));
    drop(caller);
    assert_eq!(remaining(), Some(1));
}

/// The lease is shorter than the delay.
#[test]
fn slots_are_renewed_while_a_granted_request_waits_for_its_place_in_a_queue() {
    let clock = ManualClock::default();
    let store = SwitchableStore::new(&clock);
    let queue = Limit::leaky_bucket(Rate::per_minute(1).unwrap(), 9).unwrap();
    let limiter = limiter(&store, &clock, [exports(9), Rule::new("queue", queue)]);
    let request = Request::new("");
    let _first = hold(&limiter, &request);
    let mut caller = pin!(limiter.acquire(&request, 2 * MINUTE, &clock));
    let mut poll = || caller.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    for _ in 0..6 {
        assert!(poll().is_pending());
        clock.advance(LEASE / 3);
    }
    let mut lease = granted(poll());
    let slots = || poll_once(limiter.peek(&request)).unwrap().checks()[0].outcome().remaining;
    assert_eq!(slots(), 8, "the first one has run out");
    poll_once(limiter.end(&mut lease, &Ending::Release)).unwrap();
    assert_eq!(slots(), 9);
}
