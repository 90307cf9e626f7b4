//! Reservations: what callers of `/v1/quotas` have reserved, committed and released by its id on any instance. A repeated reservation has the same
//! id, whichever instance answers.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tidegate::grants::GrantError;
use tidegate::{Grant, Timestamp};

use super::{GrantIdentity, GrantTokenKind, GrantTokens, TokenProblem};
use crate::observe::metrics::OutcomeLabel;

/// Why a call was refused.
#[derive(Debug)]
pub(crate) enum ReservationProblem {
    /// No instance with this secret wrote the id.
    Invalid,
    Refused(GrantError),
}

/// The counters of calls.
#[derive(Clone, Debug)]
pub(crate) struct ReservationMetrics(Family<OutcomeLabel, Counter>);

/// How a call of `/v1/quotas` ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReservationOutcome {
    Reserved,
    Denied,
    Committed,
    Released,
    /// Unknown, or run out.
    NotFound,
    /// It had ended in another way before.
    Ended,
    /// The idempotency key has another cost.
    KeyReused,
    /// This service did not issue the id.
    Invalid,
    /// The store failed.
    Failed,
}

impl GrantTokens {
    /// The id of what is reserved, or none without a key.
    pub(crate) fn reservation(&self, reserved: &Grant) -> Option<String> {
        self.issue(GrantTokenKind::Reservation, Timestamp::from_micros(0), GrantIdentity::default(), reserved)
    }

    /// What an id has reserved.
    pub(crate) fn read_reservation(&self, id: &str) -> Result<Grant, ReservationProblem> {
        let content = self.read(GrantTokenKind::Reservation, id).map_err(|problem| match problem {
            TokenProblem::Invalid => ReservationProblem::Invalid,
            // What it holds runs out.
            TokenProblem::OtherVersion => ReservationProblem::Refused(GrantError::NotHeld),
        })?;
        Ok(content.grant)
    }
}

impl ReservationMetrics {
    /// Metrics at zero, in `registry`.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let outcomes = Family::default();
        registry.register("tidegate_reservations", "Calls of /v1/quotas, by outcome", outcomes.clone());
        for outcome in ReservationOutcome::ALL {
            drop(outcomes.get_or_create(&OutcomeLabel { outcome: outcome.as_str() }));
        }
        Self(outcomes)
    }

    pub(crate) fn count(&self, outcome: ReservationOutcome) {
        self.0.get_or_create(&OutcomeLabel { outcome: outcome.as_str() }).inc();
    }
}

impl ReservationOutcome {
    const ALL: [Self; 9] = [
        Self::Reserved,
        Self::Denied,
        Self::Committed,
        Self::Released,
        Self::NotFound,
        Self::Ended,
        Self::KeyReused,
        Self::Invalid,
        Self::Failed,
    ];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Reserved => "reserved",
            Self::Denied => "denied",
            Self::Committed => "committed",
            Self::Released => "released",
            Self::NotFound => "not_found",
            Self::Ended => "ended",
            Self::KeyReused => "key_reused",
            Self::Invalid => "invalid",
            Self::Failed => "failed",
        }
    }
}

impl From<GrantError> for ReservationProblem {
    fn from(error: GrantError) -> Self {
        Self::Refused(error)
    }
}
