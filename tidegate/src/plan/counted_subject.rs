//! `CountedSubject`: a subject as a check has counted it, without the values that it was hashed from. A log can keep it to find the state of
//! the subject later.

use super::{Check, Gate};
use crate::Network;
use crate::key::Key;
use crate::spi::Subject;

/// A subject as a check has counted it, for [`RuleSet::resolve_counted`](crate::RuleSet::resolve_counted).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedSubject {
    subject: Subject,
    partition: u16,
    anonymous: bool,
    network: Option<Network>,
}

impl CountedSubject {
    /// The subject of a check.
    pub const fn from_check(check: &Check<'_>) -> Self {
        Self {
            subject: check.key().subject(),
            partition: check.key().partition(),
            anonymous: check.is_anonymous(),
            network: check.network(),
        }
    }

    /// The hashed subject.
    pub const fn subject(&self) -> Subject {
        self.subject
    }

    /// Its partition.
    pub(crate) const fn partition(&self) -> u16 {
        self.partition
    }

    /// The check of another gate of the same rule, with a cost of 1.
    pub(crate) fn check<'r>(&self, gate: &'r Gate, key: Key<'r>) -> Check<'r> {
        Check::from_key(gate, key, 1).with_anonymous(self.anonymous).with_network(self.network)
    }
}
