//! Adjustments: charges, refunds and renewals, one script call for each slot. Charges and refunds are never denied.
//!
//! In a cluster, no script sees all keys of a refund. So its places in queues are given back first, one after the other, and the
//! rest only if all of them could go back. If one cannot, those before it are charged again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use smallvec::SmallVec;
use tidegate::StoreError;
use tidegate::spi::algorithm::holds::HoldEnding;
use tidegate::spi::algorithm::{Op, TakePosition};
use tidegate::spi::{Adjustment, EntryId};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::args::PackedAdjustment;
use crate::call::{Call, CallError};
use crate::cardinality::{OverflowRoute, PossibleNewKey, has_overflow, without_overflow};
use crate::denial_cache::StateChange;
use crate::reply::AdjustReply;
use crate::scripts::SCRIPTS;
use crate::slot_map::slot_of;
use crate::store::RedisStore;
use crate::{args, reply};

/// The largest number of slots that one call renews or releases: a server does nothing else in the meantime.
pub(crate) const MAX_SLOT_UPDATES: usize = 128;

/// The largest number of holds that one call ends: their lists may be long, and each end copies one.
pub(crate) const MAX_HOLD_ENDINGS: usize = 32;

/// Counts a task that sends adjustments until it is dropped, also by a runtime that is shut down.
pub(crate) struct AdjustingTask(Arc<AtomicUsize>);

impl AdjustingTask {
    pub(crate) fn new(tasks: &Arc<AtomicUsize>) -> Self {
        tasks.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(tasks))
    }
}

impl Drop for AdjustingTask {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Adjustments, ready to be sent.
pub(crate) struct PreparedAdjustments {
    /// These depend on no other slot.
    independent: Vec<SlotAdjustments>,
    /// Bundled places in queues, each by itself.
    places: Vec<PreparedPlace>,
    /// What is given back after the places.
    dependent: Vec<SlotAdjustments>,
}

/// A place in a queue, ready to be given back.
struct PreparedPlace {
    slot: u16,
    refund: AdjustCall,
    /// Takes the place again if another place of the same request cannot go back.
    charge: AdjustCall,
}

/// The adjustments of one slot.
struct SlotAdjustments {
    slot: u16,
    call: AdjustCall,
    /// The same, one call for each key, for a slot that is being migrated.
    by_key: Vec<AdjustCall>,
}

/// Adjustments that are sent in one call.
struct AdjustCall {
    call: Call,
    /// For each adjustment, the key that it may create.
    possible_new_keys: Vec<PossibleNewKey>,
    /// The adjustments, if there is a quota among them, to pack its periods again.
    packed: Vec<PackedAdjustment>,
}

/// Adjustments that were made.
struct Adjusted {
    reply: AdjustReply,
    /// The entries that were written for the ledger.
    recorded: Vec<EntryId>,
}

/// What became of updates that were sent together.
struct UpdatedGroup {
    /// Those that were not held, or had ended before.
    exceptions: Vec<(usize, HoldEnding)>,
    /// The entries that were written for the ledger.
    entries: Vec<EntryId>,
}

impl RedisStore {
    /// Groups `adjustments` by slot and builds their calls. Refunds of takes from before a loss are left out.
    pub(crate) fn prepare_adjustments(&self, adjustments: &[Adjustment<'_>]) -> PreparedAdjustments {
        let is_lost = |one: &&Adjustment<'_>| {
            let generation = self.ledger.generation(one.key.partition());
            generation > 0 && one.is_of_lost_generation(generation)
        };
        let kept: SmallVec<[Adjustment<'_>; 4]> = adjustments.iter().filter(|one| !is_lost(one)).copied().collect();
        let adjustments = &kept[..];
        let has_place = adjustments.iter().any(Adjustment::is_bundled_place);
        if !self.router.is_cluster() || !has_place || adjustments.len() == 1 {
            let independent = self.prepare_slots(adjustments);
            return PreparedAdjustments { independent, places: Vec::new(), dependent: Vec::new() };
        }
        let (bundled, independent): (Vec<_>, Vec<_>) = adjustments.iter().copied().partition(|one| one.bundled);
        let (places, dependent): (Vec<_>, Vec<_>) = bundled.into_iter().partition(Adjustment::is_bundled_place);
        PreparedAdjustments {
            independent: self.prepare_slots(&independent),
            places: places.iter().map(|place| self.prepare_place(place)).collect(),
            dependent: self.prepare_slots(&dependent),
        }
    }

    fn prepare_place(&self, place: &Adjustment<'_>) -> PreparedPlace {
        let call = |adjustment: Adjustment<'_>| {
            let routes = self.cardinality.adjustment_routes(&[adjustment], self.instances());
            self.adjust_call(&[adjustment], &routes)
        };
        let mut charge = *place;
        if let Op::Refund { cost, .. } = place.op {
            (charge.op, charge.bundled) = (Op::Charge { cost, position: TakePosition::default() }, false);
        }
        PreparedPlace { slot: slot_of(place.key.partition()), refund: call(*place), charge: call(charge) }
    }

    fn prepare_slots(&self, adjustments: &[Adjustment<'_>]) -> Vec<SlotAdjustments> {
        let is_cluster = self.router.is_cluster();
        let slot = |adjustment: &Adjustment<'_>| if is_cluster { slot_of(adjustment.key.partition()) } else { 0 };
        let groups = group_by(adjustments, |one, other| slot(one) == slot(other));
        let prepared = groups.into_iter().map(|group| {
            let routes = self.cardinality.adjustment_routes(&group, self.instances());
            let keys = group_by(&group, |one, other| one.key == other.key);
            let has_several_keys = is_cluster && (keys.len() > 1 || has_overflow(&routes));
            let by_key = keys.iter().filter(|_| has_several_keys).map(|group| {
                let routes = self.cardinality.adjustment_routes(group, self.instances());
                self.adjust_call(group, &without_overflow(&routes))
            });
            SlotAdjustments {
                slot: group.first().map_or(0, slot),
                call: self.adjust_call(&group, &routes),
                by_key: by_key.collect(),
            }
        });
        prepared.collect()
    }

    /// Sends adjustments. Returns the entries that were written for the ledger.
    pub(crate) async fn send_adjustments(&self, prepared: &PreparedAdjustments) -> Result<Vec<EntryId>, StoreError> {
        let PreparedAdjustments { independent, places, dependent } = prepared;
        let mut results = self.send_slots(independent).await;
        for (index, PreparedPlace { slot, refund, .. }) in places.iter().enumerate() {
            match self.send_adjust_call(*slot, refund).await {
                Ok(adjusted) if adjusted.reply.stays_taken => {
                    let charges = places[..index].iter().map(|place| self.send_adjust_call(place.slot, &place.charge));
                    let charged = join_all(charges).await.into_iter();
                    results.extend(charged.map(|charged| Ok(charged?.recorded)));
                    return all_entries(results);
                }
                Ok(adjusted) => results.push(Ok(adjusted.recorded)),
                Err(failure) => {
                    results.push(Err(failure.into()));
                    return all_entries(results);
                }
            }
        }
        results.extend(self.send_slots(dependent).await);
        all_entries(results)
    }

    /// The result for each slot.
    async fn send_slots(&self, prepared: &[SlotAdjustments]) -> Vec<Result<Vec<EntryId>, StoreError>> {
        let calls = prepared.iter().map(async |SlotAdjustments { slot, call, by_key }| {
            match self.send_adjust_call(*slot, call).await {
                Err(failure) if failure.mid_migration => {
                    let each = join_all(by_key.iter().map(|call| self.send_adjust_call(*slot, call))).await;
                    all_entries(each.into_iter().map(|reply| Ok(reply?.recorded)).collect())
                }
                reply => Ok(reply?.recorded),
            }
        });
        join_all(calls).await
    }

    /// Sends adjustments in a task of their own, which continues if the caller stops waiting. `None` without a tokio runtime.
    pub(crate) fn spawn_adjustments(
        &self,
        adjustments: &[Adjustment<'_>],
    ) -> Option<JoinHandle<Result<Vec<EntryId>, StoreError>>> {
        let runtime = Handle::try_current().ok().filter(|_| !adjustments.is_empty())?;
        let (store, prepared) = (self.clone(), self.prepare_adjustments(adjustments));
        let change = self.begin_adjustment(adjustments);
        let adjusting = AdjustingTask::new(&self.adjusting);
        Some(runtime.spawn(async move {
            let result = store.send_adjustments(&prepared).await;
            drop((change, adjusting));
            result
        }))
    }

    /// The number of tasks that apply adjustments in the background. A process that ends should wait until there is none.
    pub fn background_adjustments(&self) -> usize {
        self.adjusting.load(Ordering::Acquire)
    }

    /// Renews and releases slots of concurrency limits. Returns for each whether it was held. Updates that may have been applied can be
    /// repeated.
    pub(crate) async fn send_slot_updates(&self, updates: &[Adjustment<'_>]) -> Result<Vec<bool>, StoreError> {
        let (endings, _) = self.send_endings(updates).await?;
        Ok(endings.into_iter().map(|ending| ending == HoldEnding::Ended).collect())
    }

    /// Renews and releases slots of concurrency limits, and ends holds, one call for each slot of the cluster and [`MAX_SLOT_UPDATES`], or
    /// [`MAX_HOLD_ENDINGS`] if there are holds among them.
    /// Returns for each what became of it, and the entries that were written for the ledger. Updates that may have been applied can be
    /// repeated.
    pub(crate) async fn send_endings(
        &self,
        updates: &[Adjustment<'_>],
    ) -> Result<(Vec<HoldEnding>, Vec<EntryId>), StoreError> {
        let is_cluster = self.router.is_cluster();
        let slot = |index: usize| if is_cluster { slot_of(updates[index].key.partition()) } else { 0 };
        let indexes: Vec<usize> = (0..updates.len()).collect();
        let groups = group_by(&indexes, |one, other| slot(*one) == slot(*other));
        let has_holds = updates.iter().any(Adjustment::is_hold_ending);
        let most = if has_holds { MAX_HOLD_ENDINGS } else { MAX_SLOT_UPDATES };
        let calls = groups.iter().flat_map(|group| group.chunks(most));
        let updated =
            join_all(calls.map(async |group| match self.update_group(slot(group[0]), updates, group).await {
                // The keys of a slot that is being migrated may be on two servers.
                Err(failure) if failure.mid_migration && group.len() > 1 => {
                    let each = group.chunks(1).map(|one| self.update_group(slot(one[0]), updates, one));
                    join_all(each).await.into_iter().collect::<Result<Vec<_>, CallError>>()
                }
                updated => updated.map(|updated| vec![updated]),
            }));
        let (mut endings, mut recorded) = (vec![HoldEnding::Ended; updates.len()], Vec::new());
        for updated in updated.await {
            for UpdatedGroup { exceptions, entries } in updated? {
                for (index, ending) in exceptions {
                    endings[index] = ending;
                }
                recorded.extend(entries);
            }
        }
        Ok((endings, recorded))
    }

    /// Renews, releases and ends those at `indexes` by one call.
    async fn update_group(
        &self,
        slot: u16,
        updates: &[Adjustment<'_>],
        indexes: &[usize],
    ) -> Result<UpdatedGroup, CallError> {
        let group: Vec<Adjustment<'_>> = indexes.iter().map(|index| updates[*index]).collect();
        let routes = self.cardinality.adjustment_routes(&group, self.instances());
        let Adjusted { reply, recorded } = self.send_adjust_call(slot, &self.adjust_call(&group, &routes)).await?;
        let not_found = reply.refused.into_iter().map(|index| (index, HoldEnding::NotFound));
        let exceptions = not_found.chain(reply.ended_before);
        let exceptions = exceptions.filter_map(|(index, ending)| Some((*indexes.get(index)?, ending))).collect();
        Ok(UpdatedGroup { exceptions, entries: recorded })
    }

    /// Drops cached denials of the keys, until the adjustments are made and the result is dropped.
    pub(crate) fn begin_adjustment(&self, adjustments: &[Adjustment<'_>]) -> StateChange {
        self.denial_cache.begin_change(adjustments.iter().map(|adjustment| &adjustment.key))
    }

    fn adjust_call(&self, adjustments: &[Adjustment<'_>], routes: &[OverflowRoute<'_>]) -> AdjustCall {
        let route = |index: usize| routes.get(index).copied().unwrap_or_default();
        let packed: Vec<PackedAdjustment> = adjustments
            .iter()
            .enumerate()
            .map(|(index, adjustment)| {
                PackedAdjustment::new(&self.options.prefix, adjustment, route(index), &self.pack_time())
            })
            .collect();
        let possible_new_keys = adjustments.iter().map(PossibleNewKey::from_adjustment).collect();
        let call = self.packed_adjust_call(packed.iter());
        let packed = if packed.iter().any(PackedAdjustment::has_periods) { packed } else { Vec::new() };
        AdjustCall { call, possible_new_keys, packed }
    }

    pub(crate) fn packed_adjust_call<'a>(
        &self,
        adjustments: impl ExactSizeIterator<Item = &'a PackedAdjustment> + Clone,
    ) -> Call {
        let variant = args::adjust_variant(adjustments.clone());
        let mut call = Call::script("EVALSHA", SCRIPTS.adjust(variant), self.call_timeouts());
        args::adjust(&mut call.command, adjustments, &self.ledger, self.injected_now());
        call
    }

    async fn send_adjust_call(&self, slot: u16, group: &AdjustCall) -> Result<Adjusted, CallError> {
        let partitions = group.packed.iter().filter_map(PackedAdjustment::ledger_partition).collect();
        let written = self.ledger.mark_after(partitions);
        let mut reply = match self.router.send(slot, &group.call).await {
            Err(failure) if !failure.error.is_possibly_applied() => {
                written.cancel();
                return Err(failure);
            }
            reply => reply::parse_adjust(&reply?)?,
        };
        let (mut has_learned, mut is_repacked, mut packed) = (false, false, Vec::new());
        while !reply.is_applied() {
            if packed.is_empty() {
                packed.clone_from(&group.packed);
            }
            if reply.is_stale && !is_repacked {
                self.period_clock.set(reply.now);
                for adjustment in &mut packed {
                    adjustment.repack(reply.now);
                }
                is_repacked = true;
            } else if !reply.is_stale && !has_learned && self.learn_from_adjust(&reply, &packed) {
                has_learned = true;
            } else {
                written.cancel();
                return Err(if reply.is_stale { reply::stale() } else { reply::rebuilding() }.into());
            }
            let again = self.packed_adjust_call(packed.iter());
            reply = reply::parse_adjust(&self.router.send(slot, &again).await?)?;
        }
        let created = reply.created.iter().filter_map(|index| group.possible_new_keys.get(*index));
        self.cardinality.record_created(reply.now, created);
        let recorded = reply.entries.iter().filter_map(|entry| {
            let (partition, (millis, sequence)) = (group.packed.get(entry.index)?.ledger_partition()?, entry.id);
            Some(EntryId { generation: entry.generation, partition, millis, sequence })
        });
        let recorded = recorded.collect();
        Ok(Adjusted { reply, recorded })
    }
}

impl RedisStore {
    /// Learns the generations that a call has found. Returns whether it can be sent again: not if one is missing, nor with a refund of what
    /// was taken under another generation, since that take may be lost.
    pub(crate) fn learn_from_adjust(&self, reply: &AdjustReply, packed: &[PackedAdjustment]) -> bool {
        let found = reply.generations.iter().filter_map(|(index, generation)| Some((packed.get(*index)?, *generation)));
        let found: Vec<_> = found
            .filter_map(|(one, generation)| {
                let partition = one.ledger_partition()?;
                Some((partition, generation, one.is_of_lost_take(self.ledger.generation(partition), generation)))
            })
            .collect();
        let is_lost = found.iter().any(|(_, _, is_lost)| *is_lost);
        self.ledger.learn(found.iter().map(|(partition, generation, _)| (*partition, *generation))) && !is_lost
    }
}

/// All entries that were written, or the [first error](first_error).
fn all_entries(results: Vec<Result<Vec<EntryId>, StoreError>>) -> Result<Vec<EntryId>, StoreError> {
    let entries = results.iter().flatten().flatten().copied().collect();
    first_error(results).map(|()| entries)
}

/// The first error, if any. It says "possibly applied" if another result is a success.
pub(crate) fn first_error<T, E: Into<StoreError>>(results: Vec<Result<T, E>>) -> Result<(), StoreError> {
    let (mut first, mut any_succeeded) = (None, false);
    for result in results {
        match result {
            Ok(_) => any_succeeded = true,
            Err(error) => first = first.or(Some(error.into())),
        }
    }
    match first {
        Some(error) if any_succeeded => Err(error.with_possibly_applied()),
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Groups `items` for which `is_same` holds. Groups are in the order of their first item.
pub(crate) fn group_by<T: Copy>(items: &[T], is_same: impl Fn(&T, &T) -> bool) -> Vec<Vec<T>> {
    let mut groups: Vec<Vec<T>> = Vec::new();
    for item in items {
        match groups.iter_mut().find(|group| is_same(&group[0], item)) {
            Some(group) => group.push(*item),
            None => groups.push(vec![*item]),
        }
    }
    groups
}
