//! The bounds and the invariants of holds.

use std::time::Duration;

use proptest::prelude::*;

use super::super::{HoldOp, Op, Take, TakePosition, apply};
use super::*;
use crate::Rate;
use crate::limits::{Period, Periods};
use crate::plan::LeaseOwner;

const TTL: u64 = 300_000_000;
/// Just after a full minute.
const NOON: Timestamp = Timestamp::from_micros(1_790_000_400_000_000);

/// A limit and its state.
struct Subject {
    limit: Limit,
    state: Option<State>,
}

fn owner(number: u64) -> LeaseOwner {
    LeaseOwner::from_number(number).unwrap()
}

fn position(number: u64, keyed: bool) -> TakePosition {
    TakePosition::from_hold(owner(number), TTL, keyed)
}

fn later(micros: u64) -> Timestamp {
    Timestamp::from_micros(NOON.as_micros() + micros)
}

/// One limit of each kind that keeps holds: 100 units, none of which comes back soon.
fn limits() -> [Limit; 5] {
    let hour = Duration::from_secs(3600);
    [
        Limit::token_bucket(100, Rate::per_hour(1).unwrap()).unwrap(),
        Limit::fixed_window(100, hour).unwrap(),
        Limit::sliding_log(100, hour).unwrap(),
        Limit::sliding_window(100, hour, 6).unwrap(),
        Limit::quota(100, Periods::utc(Period::Day)).unwrap(),
    ]
}

impl Subject {
    fn new(limit: Limit) -> Self {
        Self { limit, state: None }
    }

    fn apply(&mut self, now: Timestamp, op: Op) -> bool {
        apply(&mut self.state, &self.limit, now, op).admitted
    }

    fn take(&mut self, now: Timestamp, cost: u64) -> bool {
        self.apply(now, Op::Take(Take::one(cost)))
    }

    fn reserve(&mut self, now: Timestamp, number: u64, cost: u64) -> bool {
        let take = Take::one(cost).with_owner(owner(number));
        self.apply(now, Op::Hold(HoldOp::Reserve { take, ttl_micros: TTL }))
    }

    fn commit(&mut self, now: Timestamp, number: u64, cost: u64) -> AdjustmentOutcome {
        let op = HoldOp::Commit { cost, position: position(number, true) };
        let ending = ending(status(self.state.as_ref(), &self.limit, now, number), op);
        assert_eq!(
            self.apply(now, Op::Hold(op)),
            matches!(ending, AdjustmentOutcome::Applied | AdjustmentOutcome::Repeated)
        );
        ending
    }

    fn release(&mut self, now: Timestamp, number: u64, keyed: bool) -> AdjustmentOutcome {
        let op = HoldOp::Release { position: position(number, keyed) };
        let ending = ending(status(self.state.as_ref(), &self.limit, now, number), op);
        self.apply(now, Op::Hold(op));
        ending
    }

    /// The units that are neither consumed nor held.
    fn left(&self, now: Timestamp) -> u64 {
        super::super::room(self.state.as_ref(), &self.limit, now, Take::new(1, 1_000))
    }

    /// The units that are not consumed.
    fn unused(&self, now: Timestamp) -> u64 {
        super::super::room(limit_state(self.state.as_ref()), &self.limit, now, Take::new(1, 1_000))
    }
}

#[test]
fn a_hold_lowers_what_others_get_until_it_ends() {
    for limit in limits() {
        let mut subject = Subject::new(limit);
        assert!(subject.reserve(NOON, 1, 60) && !subject.take(NOON, 41) && subject.take(NOON, 0), "{limit:?}");
        assert_eq!((subject.left(NOON), subject.unused(NOON)), (40, 100));
        assert!(subject.take(NOON, 10) && !subject.reserve(NOON, 2, 31) && subject.reserve(NOON, 2, 30));
        assert_eq!(subject.commit(NOON, 1, 25), AdjustmentOutcome::Applied);
        assert_eq!((subject.left(NOON), subject.unused(NOON)), (35, 65));
        assert_eq!(subject.release(NOON, 2, false), AdjustmentOutcome::Applied);
        assert_eq!(subject.left(NOON), 65);
        assert_eq!(subject.release(NOON, 2, false), AdjustmentOutcome::NotFound);
    }
}

/// A commit debits what was consumed above the reservation, and a second reservation with the same key orphans no hold.
#[test]
fn a_commit_above_the_hold_debits_it_and_a_repeated_reservation_holds_nothing_more() {
    for limit in limits() {
        let mut subject = Subject::new(limit);
        assert!(subject.reserve(NOON, 1, 10) && subject.reserve(NOON, 1, 10) && !subject.reserve(NOON, 1, 11));
        assert_eq!(subject.left(NOON), 90, "{limit:?}");
        assert_eq!(subject.commit(NOON, 1, 45), AdjustmentOutcome::Applied);
        assert_eq!(subject.left(NOON), 55);
        assert_eq!(
            (subject.commit(NOON, 1, 45), subject.commit(NOON, 1, 44)),
            (AdjustmentOutcome::Repeated, AdjustmentOutcome::Differs)
        );
        assert_eq!(subject.release(NOON, 1, true), AdjustmentOutcome::Differs);
        assert!(!subject.reserve(NOON, 1, 10), "it has ended");
        assert_eq!(subject.left(NOON), 55);
    }
}

/// Otherwise a client could hold all of its limit, consume beside that, and release the hold.
#[test]
fn a_commit_charges_what_was_consumed_whatever_others_hold() {
    for limit in limits() {
        let mut subject = Subject::new(limit);
        assert!(subject.reserve(NOON, 1, 99) && subject.reserve(NOON, 2, 1));
        assert_eq!(subject.commit(NOON, 2, 80), AdjustmentOutcome::Applied);
        assert_eq!(subject.release(NOON, 1, true), AdjustmentOutcome::Applied);
        assert_eq!(subject.left(NOON), 20, "{limit:?}");
    }
}

#[test]
fn a_hold_that_has_run_out_is_equivalent_to_none() {
    for limit in limits() {
        let mut subject = Subject::new(limit);
        assert!(subject.reserve(NOON, 1, 100) && !subject.take(later(TTL - 1), 1));
        assert_eq!(subject.commit(later(TTL), 1, 5), AdjustmentOutcome::NotFound, "{limit:?}");
        assert!(subject.take(later(TTL), 100));
        assert!(!matches!(subject.state, Some(State::WithHolds(_))), "nothing is left of it");
    }
}

#[test]
fn a_reservation_that_spans_two_windows_is_charged_to_the_first() {
    let minute = Duration::from_secs(60);
    let mut window = Subject::new(Limit::fixed_window(100, minute).unwrap());
    assert!(window.reserve(NOON, 1, 100) && !window.take(NOON, 1));
    let next = later(60_000_000);
    assert!(window.take(next, 70), "the hold does not count in the next window");
    assert_eq!(window.commit(next, 1, 90), AdjustmentOutcome::Applied);
    assert_eq!(window.left(next), 30, "the window in which it was made is over");

    let mut quota = Subject::new(Limit::quota(100, Periods::utc(Period::Hour)).unwrap());
    let start = Timestamp::from_micros(NOON.as_micros() / 3_600_000_000 * 3_600_000_000 + 3_599_000_000);
    let next = start.plus(Duration::from_secs(1));
    assert!(quota.reserve(start, 1, 60) && quota.take(start, 40) && quota.take(next, 70));
    assert_eq!(quota.commit(next, 1, 60), AdjustmentOutcome::Applied);
    assert_eq!(quota.left(next), 30, "all of it fits into the period before");
    assert!(quota.reserve(next, 2, 30));
    let third = next.plus(Duration::from_secs(3600 - 1));
    assert!(quota.reserve(third, 3, 0));
}

/// In Berlin it is the next day already. Neither calendar drops what the other holds, nor moves it out of its period.
#[test]
fn two_calendars_of_a_quota_see_the_same_holds() {
    let quota = |zone| Limit::quota(100, Periods::new(Period::Day, zone, None).unwrap()).unwrap();
    let [berlin, new_york] = ["Europe/Berlin", "America/New_York"].map(quota);
    let night = Timestamp::from_micros(1_800_068_400_000_000); // 2027-01-16 04:00 in Berlin
    let minute = Duration::from_secs(60);
    for consumed in [0, 10] {
        let mut subject = Subject::new(berlin);
        assert!(subject.take(night, consumed) && subject.reserve(night, 1, 80));
        subject.limit = new_york;
        assert_eq!(subject.left(night.plus(minute)), 20 - consumed);
        assert!(!subject.take(night.plus(minute), 21) && subject.reserve(night.plus(minute), 2, 10));
        subject.limit = berlin;
        assert_eq!(subject.left(night.plus(2 * minute)), 10 - consumed);
        assert_eq!(subject.commit(night.plus(2 * minute), 1, 80), AdjustmentOutcome::Applied);
        subject.limit = new_york;
        assert_eq!(subject.commit(night.plus(3 * minute), 2, 5), AdjustmentOutcome::Applied);
        assert_eq!(
            (subject.left(night.plus(3 * minute)), subject.take(night.plus(3 * minute), 16)),
            (15 - consumed, false)
        );
        subject.limit = berlin;
        assert_eq!(subject.left(night.plus(3 * minute)), 15 - consumed);
    }
}

/// So a commit finds the bucket that a newcomer reserved in.
#[test]
fn a_position_tells_its_overflow_bucket() {
    let own = position(1, true);
    assert_eq!((own.overflow_bucket(), own.in_overflow_bucket(0).overflow_bucket()), (None, Some(0)));
    assert_eq!(own.in_overflow_bucket(7).overflow_bucket(), Some(7));
    assert_eq!(own.in_overflow_bucket(7).index(), own.index());
}

#[test]
fn the_list_is_bounded_and_forgets_the_oldest_end_first() {
    let mut subject = Subject::new(Limit::token_bucket(500_000, Rate::per_hour(1).unwrap()).unwrap());
    let max = MAX_RESERVATIONS as u64;
    assert!((1..=max).all(|number| subject.reserve(NOON, number, 1)));
    assert!(!subject.reserve(NOON, max + 1, 1), "all are open");
    assert!(subject.take(NOON, 1), "other requests pass");
    assert_eq!(
        (subject.commit(NOON, 7, 1), subject.commit(NOON, 9, 1)),
        (AdjustmentOutcome::Applied, AdjustmentOutcome::Applied)
    );
    assert!(subject.reserve(NOON, max + 1, 1));
    assert_eq!(
        (subject.commit(NOON, 7, 1), subject.commit(NOON, 9, 1)),
        (AdjustmentOutcome::NotFound, AdjustmentOutcome::Repeated)
    );
    assert!(subject.reserve(later(TTL), 1, 1), "all have run out");
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Take(u64),
    Reserve(u64, u64),
    /// At most what was reserved.
    Commit(u64, u64),
    Release(u64),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..60u64).prop_map(Step::Take),
        (1..6u64, 0..60u64).prop_map(|(number, cost)| Step::Reserve(number, cost)),
        (1..6u64, 0..60u64).prop_map(|(number, cost)| Step::Commit(number, cost)),
        (1..6u64).prop_map(Step::Release),
        (0..TTL).prop_map(Step::Pass),
    ]
}

proptest! {
    /// Without refills, and with commits of at most what was reserved.
    #[test]
    fn never_more_than_the_limit_is_consumed_and_held(kind in 0..5usize, steps in prop::collection::vec(step(), 1..60)) {
        let mut subject = Subject::new(limits()[kind]);
        let (mut passed, mut consumed) = (0, 0);
        for step in steps {
            let now = later(passed);
            let open = |subject: &Subject, number| match status(subject.state.as_ref(), &subject.limit, now, number) {
                HoldStatus::Open(units) => Some(units),
                _ => None,
            };
            match step {
                Step::Take(cost) => consumed += if subject.take(now, cost) { cost } else { 0 },
                Step::Reserve(number, cost) => {
                    let before = subject.state.clone();
                    if subject.reserve(now, number, cost) {
                        let after = subject.state.clone();
                        prop_assert!(subject.reserve(now, number, cost));
                        prop_assert_eq!(&subject.state, &after, "a repeated reservation changes nothing");
                    } else if open(&subject, number).is_some() {
                        prop_assert_eq!(&subject.state, &before, "a refused reservation changes nothing");
                    }
                }
                Step::Commit(number, cost) => if let Some(held) = open(&subject, number) {
                    let cost = cost.min(held);
                    prop_assert_eq!(subject.commit(now, number, cost), AdjustmentOutcome::Applied);
                    consumed += cost;
                    let after = subject.state.clone();
                    prop_assert_eq!(subject.commit(now, number, cost), AdjustmentOutcome::Repeated);
                    prop_assert_eq!(&subject.state, &after, "a repeated commit changes nothing");
                },
                Step::Release(number) => drop(subject.release(now, number, true)),
                Step::Pass(micros) => passed = (passed + micros).min(1_500_000_000),
            }
            let held = held(subject.state.as_ref(), &subject.limit, later(passed), 0).unwrap_or(0);
            prop_assert!(consumed + held <= 100, "{consumed} consumed, {held} held");
            prop_assert_eq!(subject.unused(later(passed)), 100 - consumed);
        }
    }

    /// What has not run out is as it was, for at least as long as it would have been; and no unit is given back.
    #[test]
    fn a_clock_that_steps_back_forgets_no_reservation_and_no_end(
        kind in 0..5usize,
        steps in prop::collection::vec(step(), 1..40),
        back in prop_oneof![1..=2_000_001u64, 1..100_000_000_000u64],
        wait in 0..TTL,
    ) {
        let (mut subject, mut passed) = (Subject::new(limits()[kind]), 0);
        for step in steps {
            let now = later(passed);
            match step {
                Step::Take(cost) => drop(subject.take(now, cost)),
                Step::Reserve(number, cost) => drop(subject.reserve(now, number, cost)),
                Step::Commit(number, cost) => drop(subject.commit(now, number, cost)),
                Step::Release(number) => drop(subject.release(now, number, true)),
                // Briefly, so that the next steps find what has not run out.
                Step::Pass(micros) => passed = (passed + micros / 10).min(1_500_000_000),
            }
        }
        let statuses = |subject: &Subject, now| {
            [1, 2, 3, 4, 5].map(|number| status(subject.state.as_ref(), &subject.limit, now, number))
        };
        let (now, behind) = (later(passed), Timestamp::from_micros(later(passed).as_micros() - back));
        let without_step = [0, wait].map(|wait| statuses(&subject, now.plus(Duration::from_micros(wait))));
        let left = subject.left(now);
        prop_assert!(subject.left(behind) <= left);
        // A denied request writes what lies too far ahead.
        subject.take(behind, 101);
        prop_assert!(subject.left(behind) <= left);
        for (before, wait) in without_step.into_iter().zip([0, wait]) {
            let after = statuses(&subject, behind.plus(Duration::from_micros(wait)));
            let kept = before.iter().zip(&after).all(|(before, after)| *before == HoldStatus::Absent || before == after);
            prop_assert!(kept, "{before:?} is {after:?}");
        }
    }
}
