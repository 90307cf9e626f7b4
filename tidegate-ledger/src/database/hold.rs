//! `HoldRow`: a reservation as the ledger knows it. Its beginning and its end may arrive in any order.

use tidegate::Timestamp;
use tidegate::spi::{EntryKind, GateHold, GateHoldStatus, OutboxEntry};

use super::entry_row::{from_signed, signed};

/// The reservation of one owner from one account: its latest beginning and its latest end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HoldRow {
    pub(crate) account: i64,
    pub(crate) owner: i64,
    pub(crate) start: Option<HoldStart>,
    pub(crate) end: Option<HoldEnd>,
}

/// How a reservation began. Later ones replace earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HoldStart {
    pub(crate) at: i64,
    pub(crate) expires_at: i64,
    pub(crate) units: i64,
    pub(crate) period: i64,
}

/// How a reservation ended. Later ones replace earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HoldEnd {
    pub(crate) at: i64,
    pub(crate) kind: i64,
    pub(crate) cost: i64,
}

impl HoldRow {
    pub(crate) const fn new(account: i64, owner: i64) -> Self {
        Self { account, owner, start: None, end: None }
    }

    /// Takes over what an entry says about the reservation. The order of entries does not matter.
    pub(crate) fn add(&mut self, entry: &OutboxEntry) {
        let at = signed(entry.at.as_micros());
        match entry.kind {
            EntryKind::Reserve => {
                let expires_at = signed(entry.expires_at.as_micros());
                let (units, period) = (signed(entry.held), signed(entry.period));
                self.start = self.start.max(Some(HoldStart { at, expires_at, units, period }));
            }
            EntryKind::Commit | EntryKind::Release | EntryKind::Expire => {
                let cost = entry.amount.saturating_add(entry.late_amount).max(0);
                // The store forgets some ends, such as that of a reservation which was undone because its request was refused.
                let is_remembered = entry.expires_at.as_micros() > 0;
                let kind = if is_remembered { entry.kind } else { EntryKind::Expire };
                self.end = self.end.max(Some(HoldEnd { at, kind: kind.number().into(), cost }));
            }
            _ => {}
        }
    }

    /// Its end, unless it was reserved again after it.
    fn current_end(&self) -> Option<HoldEnd> {
        self.end.filter(|end| self.start.is_none_or(|start| end.at >= start.at))
    }

    /// Its beginning, if it has not ended.
    pub(crate) fn open(&self) -> Option<HoldStart> {
        self.start.filter(|_| self.current_end().is_none())
    }

    /// What a store must know of it. Nothing before its beginning has arrived, after it ran out, or after an end that stores forget.
    pub(crate) fn gate_hold(&self) -> Option<GateHold> {
        let start = self.start?;
        let (status, units) = match self.current_end() {
            None => (GateHoldStatus::Open, start.units),
            Some(end) if end.kind == i64::from(EntryKind::Commit.number()) => (GateHoldStatus::Committed, end.cost),
            Some(end) if end.kind == i64::from(EntryKind::Release.number()) => (GateHoldStatus::Released, end.cost),
            Some(_) => return None,
        };
        Some(GateHold {
            owner: self.owner.cast_unsigned(),
            at: Timestamp::from_micros(from_signed(start.at)),
            expires_at: Timestamp::from_micros(from_signed(start.expires_at)),
            units: from_signed(units),
            status,
        })
    }
}
