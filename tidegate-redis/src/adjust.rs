//! Adjustments: charges and refunds, one script for those of each slot. They are never refused, so nothing is decided here.

use std::pin::pin;

use tidegate::StoreError;
use tidegate::spi::Adjustment;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::error::Failed;
use crate::flood::{Newcomer, Treated, has_overflow, without_overflow};
use crate::node::Call;
use crate::patience::Patience;
use crate::scripts::SCRIPTS;
use crate::slots::slot_of;
use crate::store::{RedisStore, in_time};
use crate::together::together;
use crate::{args, reply};

/// The adjustments of one slot.
pub(crate) struct Adjusting {
    slot: u16,
    call: Group,
    /// The same key by key, for when the slot is being moved.
    by_key: Vec<Group>,
}

/// Adjustments that are sent together.
struct Group {
    call: Call,
    /// For each, who counts if it creates a state.
    newcomers: Vec<Option<Newcomer>>,
}

impl RedisStore {
    /// Adjustments by slot.
    pub(crate) fn adjusting(&self, adjustments: &[Adjustment<'_>]) -> Vec<Adjusting> {
        let home =
            |adjustment: &Adjustment<'_>| if self.link.has_slots() { slot_of(adjustment.key.partition()) } else { 0 };
        let groups = grouped(adjustments, |one, other| home(one) == home(other));
        let adjusting = groups.into_iter().map(|group| {
            let treatment = self.flood.treatment_of(&group, self.instances());
            let keys = grouped(&group, |one, other| one.key == other.key);
            let apart = self.link.has_slots() && (keys.len() > 1 || has_overflow(&treatment));
            let by_key = keys.iter().filter(|_| apart).map(|group| {
                let treatment = self.flood.treatment_of(group, self.instances());
                self.adjust_call(group, &without_overflow(&treatment))
            });
            Adjusting {
                slot: group.first().map_or(0, home),
                call: self.adjust_call(&group, &treatment),
                by_key: by_key.collect(),
            }
        });
        adjusting.collect()
    }

    /// Sends adjustments, within the budget.
    pub(crate) async fn send_adjustments(&self, adjusting: &[Adjusting]) -> Result<(), StoreError> {
        let sent =
            adjusting.iter().map(async |Adjusting { slot, call, by_key }| match self.send_group(*slot, call).await {
                Err(failed) if failed.torn => {
                    all(together(by_key.iter().map(|group| self.send_group(*slot, group))).await)
                }
                sent => Ok(sent?),
            });
        all(in_time(self.options.budget, pin!(async { Ok(together(sent).await) })).await?)
    }

    /// Sends adjustments in a task of their own, which goes on whether or not it is waited for.
    pub(crate) fn adjust_beside(&self, adjustments: &[Adjustment<'_>]) -> Option<JoinHandle<Result<(), StoreError>>> {
        let runtime = Handle::try_current().ok().filter(|_| !adjustments.is_empty())?;
        let (store, adjusting) = (self.clone(), self.adjusting(adjustments));
        Some(runtime.spawn(async move { store.send_adjustments(&adjusting).await }))
    }

    fn adjust_call(&self, adjustments: &[Adjustment<'_>], treatment: &[Treated<'_>]) -> Group {
        let mut call =
            Call::of("EVALSHA", SCRIPTS.adjust(has_overflow(treatment)), Patience::within(self.options.budget));
        args::adjust(&mut call.command, &self.options.prefix, adjustments, treatment, self.now());
        Group { call, newcomers: adjustments.iter().map(Newcomer::of).collect() }
    }

    async fn send_group(&self, slot: u16, group: &Group) -> Result<(), Failed> {
        let (now, created) = reply::adjusted(&self.link.send(slot, &group.call).await?)?;
        if group.newcomers.iter().any(Option::is_some) {
            let created = created.into_iter().filter_map(|place| group.newcomers.get(place)?.as_ref());
            self.flood.adjusted(now, created);
        }
        Ok(())
    }
}

/// The first failure, if any. If others were carried out, then so may have been the whole.
pub(crate) fn all<T, E: Into<StoreError>>(results: Vec<Result<T, E>>) -> Result<(), StoreError> {
    let (mut failure, mut succeeded) = (None, false);
    for result in results {
        match result {
            Ok(_) => succeeded = true,
            Err(error) => failure = failure.or(Some(error.into())),
        }
    }
    match failure {
        Some(error) if succeeded => Err(error.possibly_applied()),
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// `items` in groups of those that belong together, in the order of their first.
pub(crate) fn grouped<T: Copy>(items: &[T], together: impl Fn(&T, &T) -> bool) -> Vec<Vec<T>> {
    let mut groups: Vec<Vec<T>> = Vec::new();
    for item in items {
        match groups.iter_mut().find(|group| together(&group[0], item)) {
            Some(group) => group.push(*item),
            None => groups.push(vec![*item]),
        }
    }
    groups
}
