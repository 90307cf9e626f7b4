//! Held leases in virtual time: the tests poll the renewals by hand and count their calls.

mod test_store;

use crate::sync::Mutex;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};

use self::test_store::{TestStore, TestStoreState};
use super::*;
use crate::{Limit, ManualClock, MemoryStore, Request, Rule, RuleMode, RuleSet, StoreErrorKind};

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(30);

#[derive(Default)]
struct CountingWaker(AtomicUsize);

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

type TestLimiter = Arc<Limiter<TestStore>>;

/// Held leases with their renewals, which a test polls by hand.
struct Fixture {
    clock: ManualClock,
    store: TestStore,
    limiter: Arc<Mutex<TestLimiter>>,
    leases: Option<HeldLeases<TestStore>>,
    renewals: Pin<Box<dyn Future<Output = ()> + Send>>,
    waker: Arc<CountingWaker>,
}

impl Fixture {
    fn new(rules: impl IntoIterator<Item = Rule>) -> Self {
        let clock = ManualClock::default();
        let store = TestStore(Arc::new(TestStoreState {
            memory: MemoryStore::new().with_clock(clock.clone()),
            calls: Mutex::default(),
            releases: AtomicUsize::new(0),
            error: Mutex::default(),
            error_rule: Mutex::default(),
            calls_before_stall: AtomicUsize::new(usize::MAX),
        }));
        let limiter = Arc::new(Mutex::new(Arc::new(Limiter::new(RuleSet::new(rules).unwrap(), store.clone()))));
        let leases = HeldLeases::new(Arc::new(clock.clone()));
        let current = Arc::clone(&limiter);
        let renewals = Box::pin(leases.run(move || Arc::clone(&*current.lock())));
        Self { clock, store, limiter, leases: Some(leases), renewals, waker: Arc::default() }
    }

    fn limiter(&self) -> TestLimiter {
        Arc::clone(&*self.limiter.lock())
    }

    fn reload(&self, rules: impl IntoIterator<Item = Rule>) {
        let limiter = self.limiter().with_rules(RuleSet::new(rules).unwrap());
        *self.limiter.lock() = Arc::new(limiter);
    }

    fn leases(&self) -> &HeldLeases<TestStore> {
        self.leases.as_ref().unwrap()
    }

    /// Takes and holds a slot.
    fn hold(&self) -> HeldLease {
        self.hold_for("ann")
    }

    fn hold_for(&self, user: &str) -> HeldLease {
        let limiter = self.limiter();
        let mut decision = poll_once(limiter.check(&Request::new("").with_attribute("user", user))).unwrap();
        let slots = decision.take_grant();
        assert!(!slots.is_empty(), "a free slot");
        self.leases().hold(&limiter, slots)
    }

    /// Lets the renewals run until they wait.
    fn renew(&mut self) -> Poll<()> {
        let waker = Waker::from(Arc::clone(&self.waker));
        self.renewals.as_mut().poll(&mut Context::from_waker(&waker))
    }

    fn advance(&mut self, span: Duration) {
        self.clock.advance(span);
        assert!(self.renew().is_pending());
    }

    /// The number of times that the renewals were woken.
    fn wakes(&self) -> usize {
        self.waker.0.swap(0, Ordering::Relaxed)
    }

    fn left(&self) -> u64 {
        poll_once(self.limiter().peek(&Request::new("").with_attribute("user", "ann"))).unwrap().remaining().unwrap()
    }
}

fn poll_once<T>(future: impl Future<Output = T>) -> T {
    match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the future waits"),
    }
}

fn exports(max: u64) -> Rule {
    Rule::new("exports", Limit::concurrency(max, LEASE).unwrap()).with_per(["user"])
}

fn is_lost(lease: &HeldLease) -> bool {
    lease.poll_lost(&mut Context::from_waker(Waker::noop())).is_ready()
}

#[test]
fn leases_are_renewed_together_after_a_third_of_their_duration() {
    let mut fixture = Fixture::new([exports(9)]);
    let mut held = vec![fixture.hold()];
    assert!(fixture.renew().is_pending());
    for _ in 0..2 {
        fixture.advance(SECOND);
        held.push(fixture.hold());
    }
    fixture.advance(SECOND);
    held.push(fixture.hold());
    fixture.advance(6 * SECOND);
    assert_eq!(fixture.store.calls(), [0; 0]);
    fixture.advance(SECOND);
    assert_eq!(fixture.store.calls(), [3], "two are due within a twelfth of the lease");
    for _ in 0..100 {
        fixture.advance(10 * SECOND);
    }
    assert!(!held.iter().any(is_lost) && fixture.left() == 5);
    assert_eq!((fixture.leases().held(), fixture.leases().lost()), (4, 0));
}

#[test]
fn ten_thousand_leases_are_renewed_by_forty_calls_for_each_third_of_a_lease() {
    let mut fixture = Fixture::new([exports(1)]);
    let held: Vec<HeldLease> = (0..10_000).map(|number| fixture.hold_for(&number.to_string())).collect();
    assert!(fixture.renew().is_pending());
    for _ in 0..3 {
        fixture.advance(10 * SECOND);
        let calls = fixture.store.calls();
        assert_eq!((calls.len(), calls.iter().sum::<usize>()), (40, 10_000));
    }
    drop(held);
    assert_eq!((fixture.store.releases(), fixture.leases().held()), (10_000, 0));
    assert_eq!(fixture.leases().table.next_due(), None);
    fixture.advance(LEASE);
    assert_eq!(fixture.store.calls(), [0; 0]);
}

#[test]
fn the_last_clone_releases_the_slots_once_and_nothing_is_renewed_afterwards() {
    let mut fixture = Fixture::new([exports(2)]);
    let (first, second) = (fixture.hold(), fixture.hold());
    let clone = first.clone();
    drop(first);
    assert_eq!((fixture.store.releases(), fixture.left()), (0, 0));
    drop(clone);
    assert_eq!((fixture.store.releases(), fixture.left()), (1, 1));
    fixture.advance(10 * SECOND);
    assert_eq!(fixture.store.calls(), [1]);
    drop(second);
    fixture.advance(LEASE);
    assert_eq!((fixture.store.calls(), fixture.store.releases()), (vec![], 1));
}

/// Otherwise each request would wake the renewals.
#[test]
fn the_renewals_are_woken_only_for_a_lease_that_is_due_earlier_than_all_others() {
    let short = Rule::new("short", Limit::concurrency(9, SECOND).unwrap()).with_action("short");
    let mut fixture = Fixture::new([exports(99).with_action(""), short]);
    assert!(fixture.renew().is_pending());
    let first = fixture.hold();
    assert_eq!(fixture.wakes(), 1);
    assert!(fixture.renew().is_pending());
    for _ in 0..9 {
        drop(fixture.hold());
    }
    drop(first);
    drop(fixture.hold());
    assert_eq!(fixture.wakes(), 0);
    let limiter = fixture.limiter();
    let lease = poll_once(limiter.check(&Request::new("short"))).unwrap().take_grant();
    let held = fixture.leases().hold(&limiter, lease);
    assert_eq!(fixture.wakes(), 1);
    assert!(fixture.renew().is_pending());
    for _ in 0..9 {
        fixture.advance(SECOND / 3);
    }
    assert!(!is_lost(&held) && fixture.store.calls() == [1; 9]);
}

#[test]
fn holders_above_a_lowered_limit_are_told_that_they_lost_their_slots() {
    let mut fixture = Fixture::new([exports(3)]);
    let held: Vec<HeldLease> = (0..3).map(|_| fixture.hold()).collect();
    fixture.reload([exports(1)]);
    let waker = Arc::new(CountingWaker::default());
    let clones: Vec<HeldLease> = held.iter().flat_map(|lease| [lease.clone(), lease.clone()]).collect();
    for clone in &clones {
        assert!(clone.poll_lost(&mut Context::from_waker(&Waker::from(Arc::clone(&waker)))).is_pending());
    }
    fixture.advance(10 * SECOND);
    assert_eq!(held.iter().filter(|lease| is_lost(lease)).count(), 2);
    assert_eq!((waker.0.load(Ordering::Relaxed), fixture.leases().lost()), (4, 2), "each clone is woken");
    fixture.store.calls();
    fixture.advance(10 * SECOND);
    assert_eq!(fixture.store.calls(), [1], "lost slots are not renewed");
    drop((held, clones));
    assert_eq!((fixture.leases().held(), fixture.left()), (0, 1));
}

#[test]
fn slots_that_the_store_has_forgotten_are_taken_again_if_they_fit() {
    let mut fixture = Fixture::new([exports(2)]);
    let (first, second) = (fixture.hold(), fixture.hold());
    poll_once(fixture.limiter().forget(&Request::new("").with_attribute("user", "ann"))).unwrap();
    fixture.advance(10 * SECOND);
    assert!(!is_lost(&first) && !is_lost(&second) && fixture.left() == 0);
    poll_once(fixture.limiter().forget(&Request::new("").with_attribute("user", "ann"))).unwrap();
    let third = fixture.hold();
    fixture.advance(10 * SECOND);
    assert_eq!([&first, &second, &third].map(is_lost).iter().filter(|lost| **lost).count(), 1);
    assert!(!is_lost(&third) && fixture.left() == 0, "never more than the limit");
}

#[test]
fn a_store_that_fails_is_asked_again_and_no_holder_is_lost_however_long_it_fails() {
    let mut fixture = Fixture::new([exports(2)]);
    let held = fixture.hold();
    fixture.store.fail(Some(StoreErrorKind::Unavailable));
    fixture.advance(10 * SECOND);
    for _ in 0..20 {
        fixture.advance(LEASE / 12);
    }
    assert_eq!(fixture.store.calls(), [1; 21]);
    assert!(!is_lost(&held));
    assert_eq!(fixture.left(), 2, "the slot has run out");
    fixture.store.fail(None);
    fixture.advance(LEASE / 12);
    assert!(!is_lost(&held) && fixture.left() == 1, "it is taken again");
    fixture.store.calls();
    fixture.advance(10 * SECOND);
    assert_eq!(fixture.store.calls(), [1]);
}

/// Such as by a mistake in the rules that is mended a minute later.
#[test]
fn a_slot_is_released_although_its_rule_was_removed_and_has_come_back() {
    let mut fixture = Fixture::new([exports(1)]);
    let held = fixture.hold();
    fixture.reload([Rule::new("other", Limit::concurrency(1, LEASE).unwrap()).with_action("other")]);
    fixture.advance(LEASE / 3);
    drop(held);
    fixture.reload([exports(1)]);
    assert_eq!(fixture.left(), 1);
}

/// Such as those on one server of a cluster.
#[test]
fn a_batch_that_fails_does_not_keep_others_from_being_renewed() {
    let away = Rule::new("away", Limit::concurrency(256, LEASE).unwrap()).with_action("away");
    let mut fixture = Fixture::new([exports(1).with_action(""), away]);
    let limiter = fixture.limiter();
    let take = || poll_once(limiter.check(&Request::new("away"))).unwrap().take_grant();
    let mut held: Vec<HeldLease> = (0..256).map(|_| fixture.leases().hold(&limiter, take())).collect();
    held.extend((0..256).map(|number| fixture.hold_for(&number.to_string())));
    held.push(fixture.hold());
    *fixture.store.0.error_rule.lock() = Some("away");
    fixture.store.fail(Some(StoreErrorKind::Unavailable));
    for _ in 0..24 {
        fixture.advance(LEASE / 12);
    }
    assert!(fixture.left() == 0 && !held.iter().any(is_lost));
}

/// Such as one whose value was written by another program.
#[test]
fn a_slot_that_the_store_cannot_read_does_not_keep_others_from_being_renewed() {
    let broken = Rule::new("broken", Limit::concurrency(9, LEASE).unwrap()).with_action("broken");
    let mut fixture = Fixture::new([exports(9).with_action(""), broken]);
    let limiter = fixture.limiter();
    let lease = poll_once(limiter.check(&Request::new("broken"))).unwrap().take_grant();
    let broken = fixture.leases().hold(&limiter, lease);
    let held: Vec<HeldLease> = (0..9).map(|_| fixture.hold()).collect();
    *fixture.store.0.error_rule.lock() = Some("broken");
    fixture.store.fail(Some(StoreErrorKind::Unreadable));
    for _ in 0..12 {
        fixture.advance(LEASE / 12);
    }
    assert!(fixture.left() == 0 && !held.iter().any(is_lost) && !is_lost(&broken));
}

/// The lock is not held during the call, and what the store takes again for a holder that is gone is released.
#[test]
fn a_holder_that_goes_away_while_its_slot_is_taken_again_leaves_no_slot_behind() {
    let mut fixture = Fixture::new([exports(1)]);
    let held = fixture.hold();
    poll_once(fixture.limiter().forget(&Request::new("").with_attribute("user", "ann"))).unwrap();
    fixture.store.0.calls_before_stall.store(1, Ordering::Relaxed);
    fixture.advance(10 * SECOND);
    assert_eq!(fixture.store.calls(), [1, 1], "the second call waits");
    drop(held);
    assert_eq!((fixture.leases().held(), fixture.store.releases()), (0, 1));
    fixture.store.0.calls_before_stall.store(usize::MAX, Ordering::Relaxed);
    assert!(fixture.renew().is_pending());
    assert_eq!((fixture.left(), fixture.store.releases(), fixture.leases().lost()), (1, 1, 0));
}

#[test]
fn renewals_that_are_dropped_during_a_call_are_made_by_the_next() {
    let mut fixture = Fixture::new([exports(2)]);
    let held = [fixture.hold(), fixture.hold()];
    fixture.store.0.calls_before_stall.store(0, Ordering::Relaxed);
    fixture.advance(10 * SECOND);
    assert_eq!(fixture.store.calls(), [2], "the call waits");
    let current = fixture.limiter();
    fixture.renewals = Box::pin(fixture.leases().run(move || Arc::clone(&current)));
    fixture.store.0.calls_before_stall.store(usize::MAX, Ordering::Relaxed);
    assert!(fixture.renew().is_pending());
    assert_eq!(fixture.store.calls(), [2]);
    fixture.advance(10 * SECOND);
    assert_eq!((fixture.store.calls(), held.iter().any(is_lost)), (vec![2], false));
}

#[test]
fn new_rules_apply_from_the_next_renewal_on() {
    let mut fixture = Fixture::new([exports(1)]);
    let held = fixture.hold();
    let shorter = Rule::new("exports", Limit::concurrency(1, LEASE / 10).unwrap()).with_per(["user"]);
    fixture.reload([shorter]);
    fixture.advance(10 * SECOND);
    fixture.store.calls();
    for _ in 0..20 {
        fixture.advance(SECOND);
        assert_eq!((fixture.store.calls(), fixture.left()), (vec![1], 0), "a third of the shorter lease");
    }
    fixture.reload([Rule::new("other", Limit::concurrency(1, LEASE).unwrap())]);
    fixture.advance(LEASE);
    assert_eq!(fixture.store.calls(), [0; 0], "the rule is gone, and its slots with it");
    assert!(!is_lost(&held));
    fixture.store.releases();
    drop(held);
    assert_eq!(fixture.store.releases(), 1, "under the rule that it was taken by");
}

#[test]
fn a_slot_of_a_shadow_rule_that_is_lost_ends_nothing() {
    let shadow = |max| exports(max).with_mode(RuleMode::Shadow);
    let mut fixture = Fixture::new([shadow(2)]);
    let held = [fixture.hold(), fixture.hold()];
    fixture.reload([shadow(1)]);
    fixture.advance(10 * SECOND);
    assert!(!held.iter().any(is_lost) && fixture.leases().lost() == 0);
}

#[test]
fn the_renewals_go_on_until_nothing_is_held_and_end_then() {
    let mut fixture = Fixture::new([exports(1)]);
    let held = fixture.hold();
    assert!(fixture.renew().is_pending());
    fixture.leases = None;
    fixture.advance(10 * SECOND);
    assert_eq!((fixture.store.calls(), fixture.wakes() > 0), (vec![1], true));
    drop(held);
    assert_eq!(fixture.wakes(), 1);
    assert!(fixture.renew().is_ready());
}
