//! Adjustments: charges, refunds, renewals and ends of holds, one script call for each slot of a cluster. They are never denied.

mod prepared_place;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use smallvec::SmallVec;
use tidegate::StoreError;
use tidegate::spi::algorithm::{AdjustmentOutcome, Op};
use tidegate::spi::{Adjustment, AdjustmentResult, AdjustmentResults, EntryId};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::args::PackedAdjustment;
use crate::call::{Call, CallError};
use crate::cardinality::{PossibleNewKey, has_overflow, without_overflow};
use crate::denial_cache::StateChange;
use crate::reply::AdjustReply;
use crate::scripts::SCRIPTS;
use crate::slot_map::slot_of;
use crate::store::RedisStore;
use crate::{args, reply};
use prepared_place::{PlacesOutcome, PreparedPlace};

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
    count: usize,
    /// These depend on no other slot.
    independent: Vec<SlotAdjustments>,
    /// Bundled places in queues, each by itself.
    places: Vec<PreparedPlace>,
    /// What is given back after the places.
    dependent: Vec<SlotAdjustments>,
}

/// Adjustments of one slot that are sent together.
struct SlotAdjustments {
    slot: u16,
    call: AdjustCall,
    /// The same, one call for each key, for a slot that is being migrated.
    by_key: Vec<AdjustCall>,
}

/// Adjustments that are sent in one call.
struct AdjustCall {
    call: Call,
    adjustments: Vec<CalledAdjustment>,
    /// The adjustments, if there is a quota among them, to pack its periods again.
    packed: Vec<PackedAdjustment>,
}

/// An adjustment in a call.
struct CalledAdjustment {
    /// The index of its result.
    index: usize,
    bundled: bool,
    /// The key that it may create.
    possible_new_key: PossibleNewKey,
}

/// An adjustment and the index of its result.
type Indexed<'r> = (usize, Adjustment<'r>);

/// The results of a call: the index of each adjustment, and what became of it.
type CallResults = Vec<(usize, Result<AdjustmentResult, StoreError>)>;

impl RedisStore {
    /// Groups `adjustments` by slot and builds their calls. Refunds of takes from before a loss are left out: they find nothing.
    pub(crate) fn prepare_adjustments(&self, adjustments: &[Adjustment<'_>]) -> PreparedAdjustments {
        let is_lost = |one: &Adjustment<'_>| {
            let generation = self.ledger.generation(one.key.partition());
            generation > 0 && one.is_of_lost_generation(generation)
        };
        let kept: Vec<Indexed<'_>> = adjustments.iter().copied().enumerate().filter(|(_, one)| !is_lost(one)).collect();
        let has_place = kept.iter().any(|(_, one)| one.is_bundled_place());
        let count = adjustments.len();
        if !self.router.is_cluster() || !has_place || kept.len() == 1 {
            let independent = self.prepare_slots(&kept);
            return PreparedAdjustments { count, independent, places: Vec::new(), dependent: Vec::new() };
        }
        let (bundled, independent): (Vec<_>, Vec<_>) = kept.into_iter().partition(|(_, one)| one.bundled);
        let (places, dependent): (Vec<_>, Vec<_>) = bundled.into_iter().partition(|(_, one)| one.is_bundled_place());
        PreparedAdjustments {
            count,
            independent: self.prepare_slots(&independent),
            places: places.iter().map(|place| self.prepare_place(*place)).collect(),
            dependent: self.prepare_slots(&dependent),
        }
    }

    fn prepare_slots(&self, adjustments: &[Indexed<'_>]) -> Vec<SlotAdjustments> {
        let is_cluster = self.router.is_cluster();
        let slot = |(_, one): &Indexed<'_>| if is_cluster { slot_of(one.key.partition()) } else { 0 };
        let groups = group_by(adjustments, |one, other| slot(one) == slot(other));
        let calls = groups.iter().flat_map(|group| in_calls(group));
        let prepared = calls.map(|group| {
            let call = self.adjust_call(&group, true);
            let keys =
                if is_cluster { group_by(&group, |(_, one), (_, other)| one.key == other.key) } else { Vec::new() };
            let has_several_keys = keys.len() > 1 || is_cluster && self.has_overflow(&group);
            let by_key = keys.iter().filter(|_| has_several_keys).map(|group| {
                // A new subject gets a key in place of the overflow bucket, which would be a second one. What was taken there is found there.
                self.adjust_call(group, !group.iter().any(|(_, one)| matches!(one.op, Op::Charge { .. })))
            });
            SlotAdjustments { slot: group.first().map_or(0, slot), call, by_key: by_key.collect() }
        });
        prepared.collect()
    }

    /// Sends adjustments. Ends and renewals that may have been applied can be repeated.
    pub(crate) async fn send_adjustments(&self, prepared: &PreparedAdjustments) -> AdjustmentResults {
        let PreparedAdjustments { count, independent, places, dependent } = prepared;
        let mut results: Vec<_> = (0..*count).map(|_| Ok(AdjustmentResult::new(AdjustmentOutcome::NotFound))).collect();
        let mut record = |called: CallResults| called.into_iter().for_each(|(index, result)| results[index] = result);
        record(self.send_slots(independent).await);
        let (of_places, outcome) = self.send_places(places).await;
        record(of_places);
        let unsent = |error: Option<&StoreError>| dependent.iter().flat_map(|one| one.call.unsent(error)).collect();
        record(match outcome {
            PlacesOutcome::GoneBack => self.send_slots(dependent).await,
            PlacesOutcome::StayTaken => unsent(None),
            PlacesOutcome::Failed(error) => unsent(Some(&error)),
        });
        results.into_iter().collect()
    }

    async fn send_slots(&self, prepared: &[SlotAdjustments]) -> CallResults {
        let calls = prepared.iter().map(async |SlotAdjustments { slot, call, by_key }| {
            match self.send_adjust_call(*slot, call).await {
                // The keys of a slot that is being migrated may be on two servers.
                Err(failure) if failure.mid_migration && !by_key.is_empty() => {
                    let each = by_key.iter().map(async |call| call.results(self.send_adjust_call(*slot, call).await));
                    join_all(each).await.into_iter().flatten().collect()
                }
                reply => call.results(reply),
            }
        });
        join_all(calls).await.into_iter().flatten().collect::<Vec<_>>()
    }

    /// Sends adjustments in a task of their own, which continues if the caller stops waiting. `None` without a tokio runtime.
    pub(crate) fn spawn_adjustments(&self, adjustments: &[Adjustment<'_>]) -> Option<JoinHandle<AdjustmentResults>> {
        let runtime = Handle::try_current().ok().filter(|_| !adjustments.is_empty())?;
        let (store, prepared) = (self.clone(), self.prepare_adjustments(adjustments));
        let change = self.begin_adjustment(adjustments);
        let adjusting = AdjustingTask::new(&self.adjusting);
        Some(runtime.spawn(async move {
            let results = store.send_adjustments(&prepared).await;
            drop((change, adjusting));
            results
        }))
    }

    /// The number of tasks that apply adjustments in the background. A process that ends should wait until there is none.
    pub fn background_adjustments(&self) -> usize {
        self.adjusting.load(Ordering::Acquire)
    }

    /// Drops cached denials of the keys, until the adjustments are made and the result is dropped.
    pub(crate) fn begin_adjustment(&self, adjustments: &[Adjustment<'_>]) -> StateChange {
        // Denials for want of a slot are not cached.
        let changed = adjustments.iter().filter(|adjustment| !adjustment.limit.has_slots());
        self.denial_cache.begin_change(changed.map(|adjustment| &adjustment.key))
    }

    fn has_overflow(&self, adjustments: &[Indexed<'_>]) -> bool {
        let adjustments: SmallVec<[Adjustment<'_>; 4]> = adjustments.iter().map(|(_, one)| *one).collect();
        has_overflow(&self.cardinality.adjustment_routes(&adjustments, self.instances()))
    }

    fn adjust_call(&self, indexed: &[Indexed<'_>], with_overflow: bool) -> AdjustCall {
        let adjustments: SmallVec<[Adjustment<'_>; 4]> = indexed.iter().map(|(_, one)| *one).collect();
        let routes = self.cardinality.adjustment_routes(&adjustments, self.instances());
        let routes = if with_overflow { routes } else { without_overflow(&routes) };
        let route = |index: usize| routes.get(index).copied().unwrap_or_default();
        let (prefix, time) = (self.options.namespace.as_str(), self.pack_time());
        let packed = adjustments.iter().enumerate();
        let packed: Vec<_> =
            packed.map(|(index, one)| PackedAdjustment::new(prefix, one, route(index), &time)).collect();
        let call = self.packed_adjust_call(packed.iter());
        let adjustments = indexed.iter().map(|(index, one)| CalledAdjustment {
            index: *index,
            bundled: one.bundled,
            possible_new_key: PossibleNewKey::from_adjustment(one),
        });
        let packed = if packed.iter().any(PackedAdjustment::has_periods) { packed } else { Vec::new() };
        AdjustCall { call, adjustments: adjustments.collect(), packed }
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

    async fn send_adjust_call(&self, slot: u16, group: &AdjustCall) -> Result<AdjustReply, CallError> {
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
        let created = reply.created.iter().filter_map(|index| group.adjustments.get(*index));
        self.cardinality.record_created(reply.now, created.map(|one| &one.possible_new_key));
        Ok(reply)
    }
}

impl AdjustCall {
    /// What became of each adjustment.
    fn results(&self, reply: Result<AdjustReply, CallError>) -> CallResults {
        let reply = match reply {
            Ok(reply) => reply,
            Err(failure) => {
                let error = StoreError::from(failure);
                return self.adjustments.iter().map(|one| (one.index, Err(error.clone()))).collect();
            }
        };
        let mut results: Vec<_> = self
            .adjustments
            .iter()
            .map(|one| {
                let stays_taken = one.bundled && reply.stays_taken;
                AdjustmentResult::new(if stays_taken {
                    AdjustmentOutcome::NotFound
                } else {
                    AdjustmentOutcome::Applied
                })
            })
            .collect();
        let not_found = reply.refused.into_iter().map(|index| (index, AdjustmentOutcome::NotFound));
        for (index, outcome) in not_found.chain(reply.ended_before) {
            if let Some(result) = results.get_mut(index) {
                result.outcome = outcome;
            }
        }
        for entry in &reply.entries {
            let partition = self.packed.get(entry.index).and_then(PackedAdjustment::ledger_partition);
            if let (Some(partition), Some(result)) = (partition, results.get_mut(entry.index)) {
                let (generation, (millis, sequence)) = (entry.generation, entry.id);
                result.entry = Some(EntryId { generation, partition, millis, sequence });
            }
        }
        self.adjustments.iter().zip(results).map(|(one, result)| (one.index, Ok(result))).collect()
    }

    /// The results if the call was not sent: because of `error`, or since its units stay taken.
    fn unsent(&self, error: Option<&StoreError>) -> CallResults {
        let result = || match error {
            Some(error) => Err(error.clone()),
            None => Ok(AdjustmentResult::new(AdjustmentOutcome::NotFound)),
        };
        self.adjustments.iter().map(|one| (one.index, result())).collect()
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

/// The adjustments of one slot in calls that occupy a server briefly. What is bundled stays together.
fn in_calls<'r>(adjustments: &[Indexed<'r>]) -> Vec<Vec<Indexed<'r>>> {
    let has_holds = adjustments.iter().any(|(_, one)| one.is_hold_ending());
    let most = if has_holds { MAX_HOLD_ENDINGS } else { MAX_SLOT_UPDATES };
    if adjustments.len() <= most {
        return vec![adjustments.to_vec()];
    }
    let (bundled, others): (Vec<_>, Vec<_>) = adjustments.iter().copied().partition(|(_, one)| one.bundled);
    let bundled = Some(bundled).filter(|bundled| !bundled.is_empty());
    bundled.into_iter().chain(others.chunks(most).map(<[_]>::to_vec)).collect()
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
