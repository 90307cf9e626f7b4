//! The concurrency limit: a number of units held at the same time, as leases that run out by themselves.
//!
//! A slot has an owner, a weight, and the instant of its take or of its last renewal. With a limit of M and a lease of L, a slot of
//! the instant a is *held* at t if a ≤ t < a + L and its owner has not released it. Whenever a slot is taken or renewed at t:
//!
//! ```text
//! the weights held at t, with this slot  ≤  M
//! ```
//!
//! Error bound: none. A holder that dies gives its slot up after exactly L, without any sweeper: the next take drops what has run
//! out. Every holder must renew within L, so L after M was lowered or the clock was set, no more than M is held again.
//!
//! If the store loses its state, it counts only the slots that are taken or renewed afterwards, never more than M. At most M old
//! holders that it has forgotten work besides them, each until it renews: then its slot is taken again if it fits, or it is told that
//! the slot is not held. So with renewals every L / 3, more than M are at work for at most L / 3.
//!
//! - **Take**: a slot of the owner with the cost as its weight. An owner has one slot: its second take replaces the first, so a take
//!   that may have been applied can be repeated. A slot without an owner cannot be renewed or released.
//! - **Renew**: the slot counts from now on again. Refused if more than M is held, because M was lowered: then the slot is given up. An
//!   absent slot has run out, was released, or the store has lost it. Without a weight, its renewal is refused. With a weight it is
//!   decided like a take. That is for holders who know, by their own clock, that their slot cannot have run out.
//! - **Refund**: releases the slot of the owner named by the position, or a part of its weight. Releases by others, and second ones,
//!   find nothing, do nothing and are refused.
//! - **Charge**: nothing, since what has already occurred holds no slot.
//!
//! Others may release at any time, so the retry is not computed: it is always [`RETRY`].
//!
//! The state is the list of slots, the longest not renewed first, with the sum of their weights, so that a decision touches only
//! the slots that have run out since the last one.

use std::time::Duration;

use super::lua::{LuaFunction, LuaInput};
use super::sliding_log::current;
use super::value::parse_list;
use super::{DecidedTake, Effect, Kind, Op, Outcome, State, Take, TakePosition};
use crate::Timestamp;
use crate::limit::{LimitError, MAX_CONCURRENCY, whole_micros};

/// The retry of every denial that is not permanent.
pub const RETRY: Duration = Duration::from_secs(1);

/// The parameters of a concurrency limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Concurrency {
    max: u64,
    lease: u64,
}

/// The state of a concurrency limit: all of it, or what a script replies in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConcurrencyState {
    /// The held slots.
    Slots(Slots),
    /// Their summary for one owner.
    Summary(ConcurrencySummary),
}

/// The held slots, the longest not renewed first, and the sum of their weights. Some may have run out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    slots: Vec<Slot>,
    used: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    /// The take or the last renewal, in microseconds.
    at: u64,
    /// 0 for a take without an owner.
    owner: u64,
    weight: u64,
}

/// A change of [`Slots`]: removes the first slots, optionally moves those after `at` back to it, and edits the slot of
/// an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotsChange {
    evict: u32,
    rebase: bool,
    edit: SlotEdit,
    at: u64,
    owner: u64,
    weight: u64,
}

/// What happens to the slot of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotEdit {
    Keep,
    /// It is taken or renewed now, with this weight.
    Place,
    /// It keeps its instant and this weight; without a weight it is removed.
    Resize,
}

/// What an outcome needs of the slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConcurrencySummary {
    /// The weights held.
    pub used: u64,
    /// The weight that the owner of the take already holds.
    pub own: u64,
    /// The instant of the newest take or renewal in microseconds; 0 if no slot is held.
    pub newest: u64,
}

impl Concurrency {
    pub(crate) fn new(max: u64, lease: Duration) -> Result<Self, LimitError> {
        if max > MAX_CONCURRENCY {
            let reason = "(it keeps every held slot)";
            return Err(LimitError::too_large("concurrency.max", max, MAX_CONCURRENCY, reason));
        }
        Ok(Self { max, lease: whole_micros("concurrency.lease", lease)? })
    }

    /// Units that may be held at the same time.
    pub const fn max(&self) -> u64 {
        self.max
    }

    /// How long a slot is held without a renewal.
    pub const fn lease(&self) -> Duration {
        Duration::from_micros(self.lease)
    }

    pub(crate) const fn lease_micros(&self) -> u64 {
        self.lease
    }

    /// The summary of the slots for a take of `owner` at `now`.
    fn summary(&self, state: Option<&ConcurrencyState>, now: Timestamp, owner: u64) -> ConcurrencySummary {
        let state = match state {
            None => return ConcurrencySummary::default(),
            Some(ConcurrencyState::Summary(summary)) => return *summary,
            Some(ConcurrencyState::Slots(state)) => state,
        };
        let now = current(state.newest(), now);
        let (evict, used) = self.outdated(state, now);
        let newest = if evict < state.slots.len() { state.newest().min(now) } else { 0 };
        ConcurrencySummary { used, own: state.weight_of(owner, evict), newest }
    }

    /// The number of slots that have run out, and the weights still held.
    fn outdated(&self, state: &Slots, now: u64) -> (usize, u64) {
        let outdated = state.slots.iter().take_while(|slot| slot.at + self.lease <= now);
        outdated.fold((0, state.used), |(evict, used), slot| (evict + 1, used - slot.weight))
    }
}

impl Slots {
    fn newest(&self) -> u64 {
        self.slots.last().map_or(0, |slot| slot.at)
    }

    /// The weight that `owner` holds, without the first `evict` slots.
    fn weight_of(&self, owner: u64, evict: usize) -> u64 {
        let mut held = self.slots.iter().skip(evict);
        held.find(|slot| owner > 0 && slot.owner == owner).map_or(0, |slot| slot.weight)
    }

    fn commit(&mut self, change: &SlotsChange) {
        let SlotsChange { evict, rebase, edit, at, owner, weight } = *change;
        self.slots.drain(..(evict as usize).min(self.slots.len()));
        if rebase {
            self.slots.iter_mut().for_each(|slot| slot.at = slot.at.min(at));
        }
        let own = self.slots.iter().position(|slot| owner > 0 && slot.owner == owner);
        match (edit, own) {
            (SlotEdit::Place, own) => {
                own.map(|index| self.slots.remove(index));
                self.slots.push(Slot { at, owner, weight });
            }
            (SlotEdit::Resize, Some(index)) if weight > 0 => self.slots[index].weight = weight,
            (SlotEdit::Resize, Some(index)) => drop(self.slots.remove(index)),
            (SlotEdit::Resize, None) | (SlotEdit::Keep, _) => {}
        }
        self.used = self.slots.iter().map(|slot| slot.weight).sum();
    }
}

impl Kind for Concurrency {
    type State<'s> = &'s ConcurrencyState;
    type Change = SlotsChange;

    const LUA: LuaFunction = LuaFunction {
        number: 6,
        name: "concurrency",
        text: include_str!("concurrency.lua"),
        needs: "",
        numbers: 4,
        refund_numbers: 0,
    };

    fn state(state: &State) -> Option<&ConcurrencyState> {
        if let State::Leases(state) = state { Some(state) } else { None }
    }

    fn create(change: SlotsChange) -> State {
        let mut slots = Slots::default();
        slots.commit(&change);
        State::Leases(Box::new(ConcurrencyState::Slots(slots)))
    }

    fn edit(state: &mut State, change: SlotsChange) {
        if let State::Leases(state) = state
            && let ConcurrencyState::Slots(slots) = &mut **state
        {
            slots.commit(&change);
        }
    }

    fn apply(&self, state: Option<&ConcurrencyState>, now: Timestamp, op: Op) -> Effect<SlotsChange> {
        let state = match state {
            None => None,
            Some(ConcurrencyState::Slots(slots)) => Some(slots),
            Some(ConcurrencyState::Summary(_)) => return Effect::denied(None),
        };
        let newest = state.map_or(0, Slots::newest);
        let now = current(newest, now);
        let (evict, used) = state.map_or((0, 0), |state| self.outdated(state, now));
        let own = |owner: u64| state.map_or(0, |state| state.weight_of(owner, evict));
        // There is at most one slot for each unit of the limit, so the cast is lossless.
        let (evict, rebase) = (evict as u32, newest > now);
        let change = |edit, owner, weight| SlotsChange { evict, rebase, edit, at: now, owner, weight };
        match op {
            Op::Take(take) if take.total() == 0 => Effect::admitted(None),
            Op::Take(take) if take.total() <= self.max.saturating_sub(used - own(take.owner)) => {
                Effect::admitted(Some(change(SlotEdit::Place, take.owner, take.total())))
            }
            Op::Take(_) => Effect::denied(rebase.then(|| change(SlotEdit::Keep, 0, 0))),
            Op::Charge { .. } | Op::Fill { .. } => Effect::admitted(None),
            Op::Refund { cost, position } => {
                let (owner, held) = (position.index(), own(position.index()));
                if held == 0 || cost == 0 {
                    return Effect::denied(None);
                }
                Effect::admitted(Some(change(SlotEdit::Resize, owner, held.saturating_sub(cost))))
            }
            Op::Renew { position, weight } => match (position.index(), own(position.index())) {
                (owner, 0) if owner > 0 && weight > 0 && weight <= self.max.saturating_sub(used) => {
                    Effect::admitted(Some(change(SlotEdit::Place, owner, weight)))
                }
                (_, 0) => Effect::denied(None),
                (owner, _) if used > self.max => Effect::denied(Some(change(SlotEdit::Resize, owner, 0))),
                (owner, held) => Effect::admitted(Some(change(SlotEdit::Place, owner, held))),
            },
            Op::Hold(_) | Op::Strike => Effect::denied(None),
        }
    }

    fn room(&self, state: Option<&ConcurrencyState>, now: Timestamp, take: Take) -> u64 {
        let ConcurrencySummary { used, own, .. } = self.summary(state, now, take.owner);
        let left = self.max.saturating_sub(used - own);
        left.checked_div(take.cost).unwrap_or(take.units).min(take.units)
    }

    fn outcome(&self, state: Option<&ConcurrencyState>, now: Timestamp, decided: DecidedTake) -> Outcome {
        let ConcurrencySummary { mut used, own, mut newest } = self.summary(state, now, decided.take.owner);
        let total = decided.take.total();
        if decided.consumed && total > 0 {
            used = used.saturating_sub(own) + total;
            newest = current(newest, now);
        }
        let after = |at: u64| Duration::from_micros((at + self.lease).saturating_sub(now.as_micros()));
        Outcome {
            remaining: self.max.saturating_sub(used),
            retry_after: (!decided.admitted && total <= self.max).then_some(RETRY),
            reset_after: if used > 0 { after(newest) } else { Duration::ZERO },
            ..decided.outcome(self.max)
        }
    }

    fn position(&self, _: Option<&ConcurrencyState>, _: Timestamp, take: Take) -> TakePosition {
        TakePosition::from_index(take.owner)
    }

    /// 0 if nothing is held.
    fn expiry(&self, state: &ConcurrencyState) -> u64 {
        let (used, newest) = match state {
            ConcurrencyState::Slots(slots) => (slots.used, slots.newest()),
            ConcurrencyState::Summary(summary) => (summary.newest, summary.newest),
        };
        if used > 0 { newest + self.lease } else { 0 }
    }

    /// The summary that is replied.
    fn decode(&self, value: &[u8]) -> Option<State> {
        let [used, own, newest] = <[u64; 3]>::try_from(parse_list(value)?).ok()?;
        Some(State::Leases(Box::new(ConcurrencyState::Summary(ConcurrencySummary { used, own, newest }))))
    }

    fn push_numbers(&self, input: LuaInput, _: impl FnOnce() -> Timestamp, mut push: impl FnMut(f64)) {
        for number in [input.cost, input.position.index(), self.max, self.lease] {
            push(number as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::LeaseOwner;
    use crate::{Limit, algorithm};

    const LEASE: Duration = Duration::from_secs(30);
    const NOON: Timestamp = Timestamp::from_micros(1_790_000_400_000_000);

    struct Subject {
        limit: Concurrency,
        state: Option<State>,
    }

    impl Subject {
        fn new(max: u64) -> Self {
            Self { limit: Concurrency::new(max, LEASE).unwrap(), state: None }
        }

        fn apply(&mut self, now: Timestamp, op: Op) -> bool {
            algorithm::apply(&mut self.state, &Limit::Concurrency(self.limit), now, op).admitted
        }

        fn take(&mut self, now: Timestamp, weight: u64, owner: u64) -> bool {
            let take = Take::one(weight);
            self.apply(now, Op::Take(LeaseOwner::from_number(owner).map_or(take, |owner| take.with_owner(owner))))
        }

        fn renew(&mut self, now: Timestamp, owner: u64) -> bool {
            self.renew_or_retake(now, owner, 0)
        }

        fn renew_or_retake(&mut self, now: Timestamp, owner: u64, weight: u64) -> bool {
            self.apply(now, Op::Renew { position: TakePosition::from_index(owner), weight })
        }

        fn release(&mut self, now: Timestamp, owner: u64, weight: u64) -> bool {
            self.apply(now, Op::Refund { cost: weight, position: TakePosition::from_index(owner) })
        }

        fn used(&self, now: Timestamp) -> u64 {
            self.limit.summary(self.state.as_ref().and_then(Concurrency::state), now, 0).used
        }
    }

    #[test]
    fn an_owner_that_takes_again_replaces_its_slot() {
        let mut slots = Subject::new(3);
        assert!(slots.take(NOON, 2, 7) && slots.take(NOON, 3, 7) && slots.take(NOON, 1, 7));
        assert_eq!(slots.used(NOON), 1);
        assert!(slots.take(NOON, 2, 8) && !slots.take(NOON, 2, 7));
        assert_eq!(slots.used(NOON), 3, "a denied take leaves the slot as it is");
    }

    #[test]
    fn slots_without_an_owner_are_held_until_they_run_out() {
        let mut slots = Subject::new(3);
        assert!((0..3).all(|_| slots.take(NOON, 1, 0)) && !slots.take(NOON, 1, 0));
        assert!(!slots.release(NOON, 0, 1));
        assert!(!slots.renew(NOON, 0) && !slots.renew_or_retake(NOON, 0, 1));
        assert_eq!((slots.used(NOON), slots.used(NOON.plus(LEASE))), (3, 0));
    }

    #[test]
    fn a_part_of_a_slot_can_be_released() {
        let mut slots = Subject::new(10);
        assert!(slots.take(NOON, 6, 1));
        assert!(slots.release(NOON, 1, 4));
        assert_eq!(slots.used(NOON), 2);
        assert!(slots.release(NOON, 1, 4));
        assert_eq!(slots.used(NOON), 0);
        assert!(!slots.release(NOON, 1, 4));
        assert!(!slots.renew(NOON, 1));
    }

    #[test]
    fn a_slot_that_the_store_has_lost_is_taken_again_if_it_fits() {
        let mut slots = Subject::new(5);
        assert!(!slots.renew(NOON, 1) && slots.renew_or_retake(NOON, 1, 3));
        assert!(slots.renew_or_retake(NOON, 1, 5), "a slot that is held keeps its weight");
        assert!(!slots.renew_or_retake(NOON, 2, 3) && slots.renew_or_retake(NOON, 3, 2));
        assert_eq!(slots.used(NOON), 5);
        slots.limit = Concurrency::new(2, LEASE).unwrap();
        assert!(!slots.renew_or_retake(NOON, 3, 2), "it is given up, not taken again");
        assert_eq!(slots.used(NOON), 3);
    }

    /// The lowered limit may be 0. Every holder must renew within a lease, so nothing is held above it for longer.
    #[test]
    fn renewals_above_a_lowered_limit_give_slots_up_until_it_holds() {
        for (max, kept) in [(4, 2), (5, 2), (3, 1), (0, 0)] {
            let mut slots = Subject::new(8);
            assert!((1..=4).all(|owner| slots.take(NOON, 2, owner)));
            slots.limit = Concurrency::new(max, LEASE).unwrap();
            let held = (1..=4).filter(|owner| slots.renew(NOON.plus(LEASE / 2), *owner)).count();
            assert_eq!((held, slots.used(NOON.plus(LEASE))), (kept, 2 * kept as u64), "{max}");
        }
    }

    #[test]
    fn a_clock_that_is_set_back_ends_no_lease_early_and_lengthens_none_by_more_than_a_lease() {
        let mut slots = Subject::new(2);
        assert!(slots.take(NOON, 1, 1) && slots.take(NOON, 1, 2));
        let back = Timestamp::from_micros(NOON.as_micros() - 3_600_000_000);
        assert!(!slots.take(back, 1, 3));
        assert!(slots.renew(back.plus(LEASE / 2), 2));
        assert_eq!(slots.used(back.plus(LEASE)), 1);
        assert_eq!(slots.used(back.plus(LEASE + LEASE / 2)), 0);
    }

    #[test]
    fn the_parameters_are_bounded() {
        assert!(Concurrency::new(MAX_CONCURRENCY, LEASE).is_ok());
        assert_eq!(Concurrency::new(MAX_CONCURRENCY + 1, LEASE).unwrap_err().field(), "concurrency.max");
        assert_eq!(Concurrency::new(1, Duration::ZERO).unwrap_err().field(), "concurrency.lease");
    }
}
