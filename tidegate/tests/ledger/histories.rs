//! Random histories: what the entries add up to is what the store has.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use tidegate::Ending;
use tidegate::rules::LedgerMode;
use tidegate::spi::algorithm::quota::QuotaState;
use tidegate::spi::{Outbox, OutboxEntry};

use super::{request, setup, units, wait};

/// One step of a random history.
#[derive(Clone, Debug)]
enum Step {
    Take(u64),
    Charge(u64),
    Refund(usize),
    Reserve(u64),
    Commit(usize, u64),
    Release(usize),
    Advance(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..8u64).prop_map(Step::Take),
        1 => (1..30u64).prop_map(Step::Charge),
        2 => (0..8usize).prop_map(Step::Refund),
        2 => (0..6u64).prop_map(Step::Reserve),
        2 => (0..8usize, 0..25u64).prop_map(|(index, cost)| Step::Commit(index, cost)),
        1 => (0..8usize).prop_map(Step::Release),
        2 => (1..40u64).prop_map(Step::Advance),
    ]
}

/// What the ledger knows of one account: the definition, from the sums of its entries.
fn state_from_entries(entries: &[OutboxEntry], hard_limit: u64) -> QuotaState {
    let mut sums = BTreeMap::<u64, i64>::new();
    for entry in entries {
        *sums.entry(entry.period).or_default() += entry.amount;
        if entry.late_amount != 0 {
            *sums.entry(entry.period - 1).or_default() += entry.late_amount;
        }
    }
    let mut state = QuotaState::default();
    for (period, consumed) in sums {
        state = if state.is_empty() { QuotaState { index: period, ..QuotaState::default() } } else { state };
        let rolled = state.rolled_to(period, hard_limit);
        let total = rolled.used + rolled.debt + u64::try_from(consumed).expect("never less than nothing");
        let used = total.min(hard_limit);
        state = QuotaState { index: period, used, debt: total - used, ..rolled };
    }
    state
}

proptest! {
    /// So a store that is rebuilt from the ledger decides as the one that was lost.
    #[test]
    fn the_sums_of_the_entries_are_the_state(steps in proptest::collection::vec(step(), 1..60)) {
        let setup = setup(units(LedgerMode::Async));
        let (mut receipts, mut reservations) = (Vec::new(), Vec::new());
        for step in steps {
            match step {
                Step::Take(cost) => {
                    let mut decision = wait(setup.limiter.check(&request(cost))).unwrap();
                    receipts.extend(decision.is_allowed().then(|| decision.take_grant()));
                }
                Step::Charge(cost) => wait(setup.limiter.charge(&request(cost))).unwrap(),
                Step::Refund(index) if index < receipts.len() => {
                    wait(setup.limiter.end(&mut receipts.swap_remove(index), &Ending::Refund)).unwrap();
                }
                Step::Reserve(cost) => {
                    let mut decision = wait(setup.limiter.reserve(&request(cost), None)).unwrap();
                    reservations.extend(decision.is_allowed().then(|| decision.take_grant()));
                }
                Step::Commit(index, cost) if index < reservations.len() => {
                    let _ = wait(setup.limiter.end(&mut reservations.swap_remove(index), &Ending::Commit(cost.into())));
                }
                Step::Release(index) if index < reservations.len() => {
                    let _ = wait(setup.limiter.end(&mut reservations.swap_remove(index), &Ending::Release));
                }
                // Hours or minutes, so that reservations outlive a boundary now and then.
                Step::Advance(span) => {
                    let seconds = if span < 20 { 60 * span } else { 3_600 * (span - 19) };
                    setup.clock.set(setup.store.now().plus(Duration::from_secs(seconds)));
                }
                Step::Refund(_) | Step::Commit(..) | Step::Release(_) => {}
            }
        }
        let entries = setup.entries();
        let Some(first) = entries.first() else { return Ok(()) };
        let (_, states) = wait(setup.store.read_states(first.id.partition, &[first.account()])).unwrap().unwrap();
        let stored = states[0].unwrap_or_default();
        let known = state_from_entries(&entries, 10);
        let index = stored.index.max(known.index);
        let units = |state: QuotaState| {
            let state = state.rolled_to(index, 10);
            (state.used, state.debt)
        };
        // A state that was given back as a whole has no period of its own.
        if !(stored.is_empty() && units(known) == (0, 0)) {
            prop_assert_eq!(units(stored), units(known));
        }
    }
}
