//! `CallRecord`: one call of a client, and its answer. The clients note every call, and the promises are checked against these notes.

use std::fmt;

use tidegate::Timestamp;

use super::rules::Account;

/// One call of a client.
#[derive(Clone, Debug)]
pub(super) struct CallRecord {
    pub(super) round: u32,
    pub(super) client: usize,
    pub(super) instance: usize,
    pub(super) account: Account,
    pub(super) kind: CallKind,
    pub(super) began: Timestamp,
    /// When the answer was there, or it was certain that there is none.
    pub(super) ended: Timestamp,
    pub(super) answer: Answer,
}

/// What was called. Reservations have idempotency keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallKind {
    /// By a check, or together with a slot.
    Consume {
        cost: u64,
    },
    Reserve {
        key: String,
        cost: u64,
    },
    Commit {
        key: String,
        cost: u64,
    },
    Release {
        key: String,
    },
}

/// The answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
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
    pub(super) const fn is_acknowledged(self) -> bool {
        matches!(self, Self::Done | Self::DoneAlone)
    }

    /// Whether the caller does not know what has happened.
    pub(super) const fn is_uncertain(self) -> bool {
        matches!(self, Self::Failed | Self::Missing)
    }

    /// The answer as the page counts it.
    pub(super) const fn counted(self) -> Option<crate::suite::Answer> {
        match self {
            Self::Done | Self::DoneAlone => Some(crate::suite::Answer::Allowed),
            Self::Denied | Self::NotFound | Self::Ended => Some(crate::suite::Answer::Denied),
            Self::Failed => Some(crate::suite::Answer::Refused),
            Self::Missing => Some(crate::suite::Answer::Missing),
            Self::Unsent => None,
        }
    }
}

impl fmt::Display for CallRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { round, client, instance, kind, began, ended, answer, .. } = self;
        let (began, ended) = (began.as_micros(), ended.as_micros());
        write!(f, "round {round}, client {client}, instance {instance}, {began} to {ended}: {kind:?}: {answer:?}")
    }
}
