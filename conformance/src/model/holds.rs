//! The holds of reservations beside any limit: who holds how much, since when, and how it ended.

use tidegate::spi::algorithm::AdjustmentOutcome;
use tidegate::spi::algorithm::holds::{HoldStatus, HoldsSummary, MAX_RESERVATIONS};

use super::too_far_ahead;

#[derive(Clone, Debug, Default)]
pub(super) struct Holds {
    ttl: u64,
    list: Vec<Hold>,
    /// The start of the window in which they were last written.
    window: u64,
}

#[derive(Clone, Copy, Debug)]
struct Hold {
    owner: u64,
    at: u64,
    status: HoldStatus,
}

impl Hold {
    fn units(&self) -> u64 {
        if let HoldStatus::Open(units) = self.status { units } else { 0 }
    }
}

/// An instant, and the start of the window of the limit at that instant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) now: u64,
    /// 0 for limits without windows of the clock.
    pub(super) window: u64,
}

impl Holds {
    fn newest(&self) -> u64 {
        self.list.iter().map(|hold| hold.at).max().unwrap_or(0)
    }

    /// Now, or the newest hold if the clock is slightly behind it; never before the window.
    fn clock(&self, moment: Moment) -> u64 {
        let newest = self.newest();
        let now = if too_far_ahead(newest, moment.now) { moment.now } else { moment.now.max(newest) };
        now.max(moment.window)
    }

    fn lasting(&self, moment: Moment) -> impl Iterator<Item = &Hold> {
        let (clock, ttl) = (self.clock(moment), self.ttl);
        self.list.iter().filter(move |hold| hold.at + ttl > clock)
    }

    /// The units that all but `owner` hold in the window.
    pub(super) fn held_by_others(&self, moment: Moment, owner: u64) -> u64 {
        let counts = |hold: &&Hold| hold.at >= moment.window && (owner == 0 || hold.owner != owner);
        self.lasting(moment).filter(counts).map(Hold::units).sum()
    }

    /// What is known of the hold of an owner.
    pub(super) fn status(&self, moment: Moment, owner: u64) -> HoldStatus {
        self.lasting(moment).find(|hold| hold.owner == owner).map_or(HoldStatus::Absent, |hold| hold.status)
    }

    /// When the hold of an owner was made; not after now.
    pub(super) fn made_at(&self, moment: Moment, owner: u64) -> Option<u64> {
        let own = self.lasting(moment).find(|hold| hold.owner == owner)?;
        Some(own.at.min(self.clock(moment)))
    }

    /// Whether there is room for another hold, if need be by forgetting an end.
    pub(super) fn has_room(&self, moment: Moment) -> bool {
        let open = self.lasting(moment).filter(|hold| matches!(hold.status, HoldStatus::Open(_))).count();
        open < MAX_RESERVATIONS
    }

    /// Whether a denied request writes them.
    pub(super) fn is_stale(&self, moment: Moment) -> bool {
        self.newest() > self.clock(moment) || self.window != moment.window
    }

    /// Drops what has run out, and moves what lies too far ahead to now.
    pub(super) fn write(&mut self, moment: Moment) {
        let clock = self.clock(moment);
        self.list = self.lasting(moment).copied().collect();
        self.list.iter_mut().for_each(|hold| hold.at = hold.at.min(clock));
        self.window = moment.window;
    }

    pub(super) fn place(&mut self, moment: Moment, owner: u64, units: u64, ttl: u64) {
        let at = self.clock(moment);
        self.write(moment);
        if self.list.len() >= MAX_RESERVATIONS {
            let end = self.list.iter().position(|hold| !matches!(hold.status, HoldStatus::Open(_)));
            end.map(|index| self.list.remove(index));
        }
        self.ttl = ttl;
        self.list.push(Hold { owner, at, status: HoldStatus::Open(units) });
    }

    /// Ends a hold. The end is remembered if it is `keyed`.
    pub(super) fn end(&mut self, moment: Moment, owner: u64, ended: HoldStatus, keyed: bool) -> AdjustmentOutcome {
        let status = self.status(moment, owner);
        if let HoldStatus::Open(_) = status {
            self.write(moment);
            if keyed {
                self.list.iter_mut().filter(|hold| hold.owner == owner).for_each(|hold| hold.status = ended);
            } else {
                self.list.retain(|hold| hold.owner != owner);
            }
            return AdjustmentOutcome::Applied;
        }
        if self.is_stale(moment) {
            self.write(moment);
        }
        match status {
            HoldStatus::Absent => AdjustmentOutcome::NotFound,
            status if status == ended => AdjustmentOutcome::Repeated,
            _ => AdjustmentOutcome::Differs,
        }
    }

    pub(super) fn summary(&self, now: u64) -> HoldsSummary {
        let moment = Moment { now, window: 0 };
        let open = || self.lasting(moment).filter(|hold| matches!(hold.status, HoldStatus::Open(_)));
        HoldsSummary {
            reservations: open().count() as u64,
            units: open().map(Hold::units).sum(),
            oldest_ends: open().next().map_or(0, |hold| hold.at.min(self.clock(moment)) + self.ttl),
        }
    }
}
