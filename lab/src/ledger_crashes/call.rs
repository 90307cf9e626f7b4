//! `CallRecord`: one call of a client, and its answer. The clients note every call, and the promises are checked against these notes.

use std::fmt;

use tidegate::Timestamp;

use super::rules::Account;

/// One call of a client.
#[derive(Clone, Debug)]
pub struct CallRecord {
    /// The round.
    pub round: u32,
    /// The number of the client.
    pub client: usize,
    /// The instance that was called.
    pub instance: usize,
    /// The account that the call is about.
    pub account: Account,
    /// What was called.
    pub kind: CallKind,
    /// When the call began.
    pub began: Timestamp,
    /// When the answer was there, or it was certain that there is none.
    pub ended: Timestamp,
    /// The answer.
    pub answer: Answer,
}

/// What was called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// Consumes units, by a check or together with a slot.
    Consume {
        /// The units.
        cost: u64,
    },
    /// Reserves units.
    Reserve {
        /// The idempotency key.
        key: String,
        /// The units.
        cost: u64,
    },
    /// Ends a reservation and consumes units.
    Commit {
        /// The idempotency key of the reservation.
        key: String,
        /// The units.
        cost: u64,
    },
    /// Ends a reservation without consuming any.
    Release {
        /// The idempotency key of the reservation.
        key: String,
    },
}

/// The answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Allowed, committed or released.
    Done,
    /// Allowed by an instance without the store, and written to its journal.
    DoneAlone,
    /// Denied by the quota or by the slots.
    Denied,
    /// The reservation is not known: 404.
    NotFound,
    /// The reservation has ended in another way: 409.
    Ended,
    /// 503: what was called may have happened, and is given back if the server can.
    Failed,
    /// None: what was called may have happened.
    Missing,
    /// The instance was dead, so that nothing was sent.
    Unsent,
}

impl Answer {
    /// Whether the caller was told that it happened.
    pub const fn is_acknowledged(self) -> bool {
        matches!(self, Self::Done | Self::DoneAlone)
    }

    /// Whether the caller does not know what has happened.
    pub const fn is_uncertain(self) -> bool {
        matches!(self, Self::Failed | Self::Missing)
    }
}

impl fmt::Display for CallRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { round, client, instance, kind, began, ended, answer, .. } = self;
        let (began, ended) = (began.as_micros(), ended.as_micros());
        write!(f, "round {round}, client {client}, instance {instance}, {began} to {ended}: {kind:?}: {answer:?}")
    }
}
