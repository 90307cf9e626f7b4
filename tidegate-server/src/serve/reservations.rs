//! `ReservationIds`: what callers of `/v1/quotas` have reserved, as a signed id that any instance with the same secret commits and releases.
//!
//! The payload of an id is one byte of version; the length of the next part, of eight bytes; the [receipt](Receipt::to_bytes) of the holds
//! and slots in the store; and that of those in the memory of the instance that decided, made while the store failed. Subjects are
//! in it as keyed hashes only. A repeated reservation has the same id, whichever instance answers.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use ring::hmac;
use tidegate::{Receipt, Reservation, ReservationError, RuleSet};

use super::api::BadRequest;
use super::metrics::OutcomeLabel;
use super::signed_text::TextSigner;

/// The version of the payload.
const LAYOUT_VERSION: u8 = 1;

/// Longest id that is read. That of a plan with 32 limits is shorter.
const MAX_ID_BYTES: usize = 64 * 1024;

/// Writes and reads the ids of reservations.
#[derive(Debug)]
pub(crate) struct ReservationIds {
    /// None if instances have no secret in common.
    signer: Option<TextSigner>,
}

/// Why a call was refused.
#[derive(Debug)]
pub(crate) enum ReservationProblem {
    /// No instance with this secret wrote the id.
    Invalid,
    Refused(ReservationError),
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

impl ReservationIds {
    /// Reservations with ids signed with `key`. Without one, a random key serves a store that is not shared; on a shared store there are
    /// none, since instances could not verify the ids of each other.
    pub(crate) fn new(key: Option<hmac::Key>, is_shared: bool) -> Self {
        Self { signer: TextSigner::new(key, is_shared) }
    }

    /// Refuses a call that would get a reservation where there are none.
    pub(crate) fn require(&self) -> Result<(), BadRequest> {
        match &self.signer {
            Some(_) => Ok(()),
            None => Err(BadRequest::new("reservation: there are none without a secret; set TIDEGATE_SECRET")),
        }
    }

    /// The id of a reservation, or none without a key.
    pub(crate) fn issue(&self, reservation: &Reservation) -> Option<String> {
        let (stored, local) = (reservation.stored().to_bytes(), reservation.local().to_bytes());
        let mut payload = vec![LAYOUT_VERSION];
        payload.extend_from_slice(&(stored.len() as u64).to_be_bytes());
        payload.extend_from_slice(&stored);
        payload.extend_from_slice(&local);
        Some(self.signer.as_ref()?.sign(&payload))
    }

    /// The reservation of an id, under the current rules.
    pub(crate) fn read(&self, id: &str, rules: &RuleSet) -> Result<Reservation, ReservationProblem> {
        let signer = self.signer.as_ref().ok_or(ReservationProblem::Invalid)?;
        let (payload, _) = signer.verify(id, MAX_ID_BYTES).ok_or(ReservationProblem::Invalid)?;
        let reservation = from_payload(&payload).and_then(|[stored, local]| {
            let is_empty = stored.is_empty() && local.is_empty();
            Reservation::from_receipts(stored, local, rules).filter(|_| !is_empty)
        });
        // Another version of this server has signed it. What it holds runs out.
        reservation.ok_or(ReservationProblem::Refused(ReservationError::NotFound))
    }
}

/// The receipts in the payload of an id: of what is in the store, and in the memory of an instance.
fn from_payload(payload: &[u8]) -> Option<[Receipt; 2]> {
    let (length, rest) = payload.strip_prefix(&[LAYOUT_VERSION])?.split_first_chunk()?;
    let (stored, local) = rest.split_at_checked(usize::try_from(u64::from_be_bytes(*length)).ok()?)?;
    Some([Receipt::from_bytes(stored)?, Receipt::from_bytes(local)?])
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

impl From<ReservationError> for ReservationProblem {
    fn from(error: ReservationError) -> Self {
        Self::Refused(error)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use tidegate::{Limit, Limiter, MemoryStore, Request, Rule};

    use super::*;

    fn key(secret: &str) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes())
    }

    fn limiter() -> Limiter<MemoryStore> {
        let rule = Rule::new("tokens", Limit::fixed_window(9, Duration::from_mins(1)).unwrap());
        Limiter::new(RuleSet::new([rule]).unwrap(), MemoryStore::new())
    }

    fn reservation(limiter: &Limiter<MemoryStore>) -> Reservation {
        limiter.reserve_now(&Request::new(""), Some("order-17")).unwrap().reservation().unwrap()
    }

    #[test]
    fn one_changed_bit_anywhere_makes_an_id_invalid() {
        let (limiter, reservations) = (limiter(), ReservationIds::new(Some(key("a")), true));
        let id = reservations.issue(&reservation(&limiter)).unwrap();
        let (payload, signature) = id.split_once('.').unwrap();
        let parts = [payload, signature].map(|part| URL_SAFE_NO_PAD.decode(part).unwrap());
        for (part, bytes) in parts.iter().enumerate() {
            for bit in 0..bytes.len() * 8 {
                let mut changed = parts.clone();
                changed[part][bit / 8] ^= 1 << (bit % 8);
                let changed = changed.map(|part| URL_SAFE_NO_PAD.encode(part)).join(".");
                let problem = reservations.read(&changed, limiter.rules()).unwrap_err();
                assert!(matches!(problem, ReservationProblem::Invalid), "bit {bit} of part {part}");
            }
        }
        assert!(reservations.read(&id, limiter.rules()).is_ok());
        assert!(ReservationIds::new(Some(key("b")), true).read(&id, limiter.rules()).is_err());
    }

    #[test]
    fn a_payload_of_another_version_is_not_found() {
        let (limiter, reservations) = (limiter(), ReservationIds::new(Some(key("a")), true));
        let payload = |id: &str| URL_SAFE_NO_PAD.decode(id.split('.').next().unwrap()).unwrap();
        let right = payload(&reservations.issue(&reservation(&limiter)).unwrap());
        let signer = reservations.signer.as_ref().unwrap();
        let mut wrong = vec![Vec::new(), vec![LAYOUT_VERSION], vec![0; 64]];
        wrong.extend((0..right.len()).map(|length| right[..length].to_vec()));
        wrong.push([&[LAYOUT_VERSION][..], &u64::MAX.to_be_bytes(), &right[9..]].concat());
        for payload in wrong {
            let problem = reservations.read(&signer.sign(&payload), limiter.rules()).unwrap_err();
            assert!(matches!(problem, ReservationProblem::Refused(ReservationError::NotFound)), "{payload:?}");
        }
    }

    #[test]
    fn a_shared_store_without_a_secret_has_no_reservations() {
        assert!(ReservationIds::new(None, true).require().is_err());
        assert!(ReservationIds::new(None, false).require().is_ok());
    }
}
