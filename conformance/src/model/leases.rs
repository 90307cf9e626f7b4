//! The concurrency limit: the list of slots, who holds them, and since when.

use tidegate::spi::algorithm::concurrency::Concurrency;

use super::{ModelRequest, Place, too_far_ahead};

/// The slots, in no particular order.
#[derive(Clone, Debug)]
pub struct Leases {
    pub(super) amount: u64,
    lease: u64,
    slots: Vec<Slot>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// 0 if nobody can release it.
    owner: u64,
    weight: u64,
    /// The take or the last renewal.
    at: u64,
}

impl Leases {
    pub(super) fn new(limit: &Concurrency) -> Self {
        Self { amount: limit.max(), lease: limit.lease().as_micros() as u64, slots: Vec::new() }
    }

    fn newest(&self) -> u64 {
        self.slots.iter().map(|slot| slot.at).max().unwrap_or(0)
    }

    /// Now, or the newest slot if the clock is slightly behind it.
    fn current(&self, now: u64) -> u64 {
        now.max(self.newest())
    }

    fn is_held(&self, slot: &Slot, now: u64) -> bool {
        slot.at + self.lease > self.current(now)
    }

    /// The weight that all others than `owner` hold.
    fn held_by_others(&self, now: u64, owner: u64) -> u64 {
        let is_other = |slot: &&Slot| owner == 0 || slot.owner != owner;
        self.slots.iter().filter(|slot| self.is_held(slot, now)).filter(is_other).map(|slot| slot.weight).sum()
    }

    fn held_by(&self, now: u64, owner: u64) -> u64 {
        self.held_by_others(now, 0) - self.held_by_others(now, owner)
    }

    /// Drops the slots that have run out.
    fn write(&mut self, now: u64) {
        let held: Vec<Slot> = self.slots.iter().filter(|slot| self.is_held(slot, now)).copied().collect();
        self.slots = held;
    }

    pub(super) fn settle(&mut self, now: u64) -> bool {
        let rebase = too_far_ahead(self.newest(), now);
        if rebase {
            let lease = self.lease;
            self.slots.retain(|slot| slot.at + lease > now);
            self.slots.iter_mut().for_each(|slot| slot.at = slot.at.min(now));
        }
        rebase
    }

    pub(super) fn fits(&self, request: ModelRequest) -> bool {
        let others = self.held_by_others(request.now, request.owner);
        u128::from(others) + u128::from(request.cost) <= u128::from(self.amount)
    }

    pub(super) fn spend(&mut self, now: u64, weight: u64, owner: u64) -> Place {
        let at = self.current(now);
        self.write(now);
        self.slots.retain(|slot| owner == 0 || slot.owner != owner);
        self.slots.push(Slot { owner, weight, at });
        owner.into()
    }

    /// Releases the slot of an owner, or a part of it.
    pub(super) fn refund(&mut self, now: u64, cost: u64, place: Place) -> bool {
        let owner = place.at as u64;
        self.settle(now);
        if cost == 0 || self.held_by(now, owner) == 0 {
            return false;
        }
        self.write(now);
        for slot in self.slots.iter_mut().filter(|slot| slot.owner == owner) {
            slot.weight = slot.weight.saturating_sub(cost);
        }
        self.slots.retain(|slot| slot.weight > 0);
        true
    }

    /// Holds the slot of an owner for another lease, and returns whether it is held. An absent slot is taken again with the weight
    /// `retaken`, unless that is 0.
    pub(super) fn renew(&mut self, now: u64, place: Place, retaken: u64) -> bool {
        let owner = place.at as u64;
        let mut settled = self.clone();
        settled.settle(now);
        let weight = settled.held_by(now, owner);
        if weight == 0 {
            let is_retaken = retaken > 0
                && owner > 0
                && settled.fits(ModelRequest { now, cost: retaken, max_delay: u64::MAX, owner });
            if is_retaken {
                settled.spend(now, retaken, owner);
                *self = settled;
            }
            return is_retaken;
        }
        *self = settled;
        if self.held_by_others(now, 0) > self.amount {
            self.refund(now, weight, place);
            return false;
        }
        self.spend(now, weight, owner);
        true
    }

    pub(super) fn is_fresh(&self, now: u64) -> bool {
        self.held_by_others(now, 0) == 0
    }
}
