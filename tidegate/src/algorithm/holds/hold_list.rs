//! `Holds`: the holds of one key, as a list or as a summary of it.

use super::super::sliding_log::current;
use super::super::{Op, State};
use super::MAX_RESERVATIONS;
use crate::ledger::{GateHold, GateHoldStatus};
use crate::{Limit, Timestamp};

/// The holds of one key, or what a script replies in their place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Holds {
    /// All of them.
    List(HoldList),
    /// The units that others hold, and when the last hold runs out, in microseconds; 0 if there is none.
    Summary { held: u64, ends: u64 },
}

/// A list of holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HoldList {
    /// The time to live in microseconds: that of the last reservation.
    pub(super) ttl: u64,
    /// The sum of the open holds that were made at `since` or later. Some may have run out.
    pub(super) held: u64,
    pub(super) since: u64,
    /// In the order of their instants.
    pub(super) entries: Vec<Hold>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hold {
    /// When it was made, in microseconds.
    pub(super) at: u64,
    pub(super) owner: u64,
    pub(super) status: HoldStatus,
}

/// What is known of the hold of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldStatus {
    /// It was never made, has run out, or its end was not to be remembered.
    Absent,
    /// It holds these units.
    Open(u64),
    /// It was committed with this cost.
    Committed(u64),
    /// It was released.
    Released,
}

/// A change of a [`StateWithHolds`](super::StateWithHolds): an operation on the state of the limit, and an edit of the holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HoldsChange {
    pub(super) inner: Option<Op>,
    pub(super) clock: u64,
    pub(super) since: u64,
    pub(super) edit: HoldEdit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HoldEdit {
    /// Only drops what has run out.
    Keep,
    /// Adds a hold.
    Place { owner: u64, units: u64, ttl: u64 },
    /// The hold of the owner has ended. It is removed, or its end is remembered.
    End { owner: u64, remembered: Option<HoldStatus> },
}

/// The open holds of all owners under one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HoldsSummary {
    /// The number of open holds.
    pub reservations: u64,
    /// The units that they hold.
    pub units: u64,
    /// When the oldest of them runs out, in microseconds; 0 if there is none.
    pub oldest_ends: u64,
}

/// The holds at one instant.
pub(super) struct CurrentHolds {
    /// The instant that counts as now: not before the newest hold, nor before the current window.
    pub(super) clock: u64,
    /// Holds that were made before do not count.
    pub(super) since: u64,
    /// The units of the open holds that count.
    pub(super) held: u64,
    /// Whether even a denied request writes them: the clock was set back, or another window has begun.
    pub(super) is_stale: bool,
}

impl Holds {
    pub(super) fn at(holds: Option<&Self>, inner: Option<&State>, limit: &Limit, now: Timestamp) -> CurrentHolds {
        let since = super::super::period_start(inner, limit, now);
        let holds = match holds {
            Some(Self::List(holds)) => holds,
            Some(Self::Summary { held, .. }) => {
                return CurrentHolds { clock: now.as_micros(), since, held: *held, is_stale: false };
            }
            None => return CurrentHolds { clock: now.as_micros().max(since), since, held: 0, is_stale: false },
        };
        let clock = current(holds.newest(), now).max(since);
        let is_over = |hold: &&Hold| hold.at + holds.ttl <= clock;
        let held = if since == holds.since {
            let over = holds.entries.iter().take_while(is_over).filter(|hold| hold.at >= since);
            holds.held - over.map(Hold::open_units).sum::<u64>()
        } else {
            sum_since(holds.entries.iter().skip_while(is_over), since)
        };
        CurrentHolds { clock, since, held, is_stale: holds.newest() > clock || since != holds.since }
    }

    /// The hold of an owner, unless it has run out.
    pub(super) fn find(&self, owner: u64, clock: u64) -> Option<&Hold> {
        if let Self::List(holds) = self { holds.find(owner, clock) } else { None }
    }

    /// Whether there is room for another hold, possibly by forgetting an end.
    pub(super) fn has_room(&self, clock: u64) -> bool {
        matches!(self, Self::List(holds) if holds.has_room(clock))
    }

    /// Whether there are none.
    pub(super) const fn is_empty(&self) -> bool {
        matches!(self, Self::List(holds) if holds.entries.is_empty())
    }

    /// When the last one runs out, in microseconds; 0 if there is none.
    pub(super) fn last_end(&self) -> u64 {
        match self {
            Self::List(holds) => holds.entries.last().map_or(0, |hold| hold.at + holds.ttl),
            Self::Summary { ends, .. } => *ends,
        }
    }
}

impl Default for Holds {
    fn default() -> Self {
        Self::List(HoldList::default())
    }
}

impl HoldList {
    /// The holds that the ledger knows: the newest ones, if there are too many. All share the longest time to live.
    pub(super) fn from_ledger(holds: &[GateHold]) -> Self {
        let newest = &holds[holds.len().saturating_sub(MAX_RESERVATIONS)..];
        let ttl = newest.iter().map(|hold| hold.expires_at.since(hold.at).as_micros() as u64).max().unwrap_or(0);
        let hold = |hold: &GateHold| Hold {
            at: hold.at.as_micros(),
            owner: hold.owner,
            status: match hold.status {
                GateHoldStatus::Open => HoldStatus::Open(hold.units),
                GateHoldStatus::Committed => HoldStatus::Committed(hold.units),
                GateHoldStatus::Released => HoldStatus::Released,
            },
        };
        let entries: Vec<Hold> = newest.iter().map(hold).collect();
        Self { ttl, held: sum_since(entries.iter(), 0), since: 0, entries }
    }

    fn newest(&self) -> u64 {
        self.entries.last().map_or(0, |hold| hold.at)
    }

    fn find(&self, owner: u64, clock: u64) -> Option<&Hold> {
        // The newest ones end first, most often.
        self.entries.iter().rev().take_while(|hold| hold.at + self.ttl > clock).find(|hold| hold.owner == owner)
    }

    fn has_room(&self, clock: u64) -> bool {
        self.entries.len() < MAX_RESERVATIONS
            || self.entries.iter().any(|hold| hold.at + self.ttl <= clock || !hold.is_open())
    }

    pub(super) fn summary(&self, now: Timestamp) -> HoldsSummary {
        let clock = current(self.newest(), now);
        let mut summary = HoldsSummary::default();
        for hold in self.entries.iter().filter(|hold| hold.is_open() && hold.at + self.ttl > clock) {
            summary.reservations += 1;
            summary.units = summary.units.saturating_add(hold.open_units());
            if summary.reservations == 1 {
                summary.oldest_ends = hold.at.min(clock) + self.ttl;
            }
        }
        summary
    }

    pub(super) fn commit(&mut self, HoldsChange { clock, since, edit, .. }: &HoldsChange) {
        let (clock, ttl) = (*clock, self.ttl);
        self.entries.retain(|hold| hold.at + ttl > clock);
        // The clock was set back.
        self.entries.iter_mut().for_each(|hold| hold.at = hold.at.min(clock));
        match *edit {
            HoldEdit::Keep => {}
            HoldEdit::Place { owner, units, ttl } => {
                if self.entries.len() >= MAX_RESERVATIONS
                    && let Some(oldest_end) = self.entries.iter().position(|hold| !hold.is_open())
                {
                    self.entries.remove(oldest_end);
                }
                self.ttl = ttl;
                self.entries.push(Hold { at: clock, owner, status: HoldStatus::Open(units) });
            }
            HoldEdit::End { owner, remembered } => {
                if let Some(index) = self.entries.iter().position(|hold| hold.owner == owner) {
                    match remembered {
                        Some(status) => self.entries[index].status = status,
                        None => drop(self.entries.remove(index)),
                    }
                }
            }
        }
        (self.since, self.held) = (*since, sum_since(self.entries.iter(), *since));
    }
}

impl Hold {
    pub(super) const fn open_units(&self) -> u64 {
        if let HoldStatus::Open(units) = self.status { units } else { 0 }
    }

    pub(super) const fn is_open(&self) -> bool {
        matches!(self.status, HoldStatus::Open(_))
    }
}

/// The units of the open holds that were made at `since` or later.
fn sum_since<'h>(holds: impl Iterator<Item = &'h Hold>, since: u64) -> u64 {
    holds.filter(|hold| hold.at >= since).map(Hold::open_units).fold(0, u64::saturating_add)
}
