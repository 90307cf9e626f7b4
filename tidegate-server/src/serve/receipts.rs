//! `Receipts`: what a check consumed, as a signed text that its caller may return once, to any instance, for a refund.
//!
//! The text is the receipt in base64, a dot, and its HMAC-SHA256 in base64: 24 bytes of time and number, the bytes of
//! [`Receipt::to_bytes`] with their version, and 32 bytes of signature. Using a receipt once is itself a limit: one refund
//! for each signature, on the same store as all others. If the store fails between that and the refund, the refund is lost,
//! which leaves a limit stricter than necessary and never looser.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ring::hmac;
use tidegate::spi::{Check, Gate, KeyStem, Plan, Role, Store, Subject};
use tidegate::{Clock, Limit, LimitError, Limiter, OnFailure, Rate, Receipt, StoreError, SystemClock, Timestamp};

use super::api::BadRequest;
use super::leases::LeaseIdentity;
use super::signed_text::TextSigner;

/// The time in which a receipt can be refunded.
const RECEIPT_VALIDITY: Duration = Duration::from_hours(1);

/// How long the use of a receipt is remembered. Longer than it is valid, since clocks differ.
const REPLAY_RETENTION: Duration = Duration::from_hours(2);

/// Longest text that is read. A receipt has at most 32 checks, which are shorter.
const MAX_TEXT_BYTES: usize = 64 * 1024;

/// Writes receipts and refunds them.
#[derive(Debug)]
pub(crate) struct Receipts {
    /// None if instances have no secret in common.
    signer: Option<TextSigner>,
    once: Gate,
    clock: SystemClock,
    /// Distinguishes the receipts of instances; a counter distinguishes those of one.
    instance: u64,
    written: AtomicU64,
}

/// The result of a refund.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefundOutcome {
    /// The cost was returned as far as the limits still miss it.
    Refunded,
    AlreadyRefunded,
    /// It is older than [`RECEIPT_VALIDITY`], or another version of this server wrote it.
    TooOld,
    /// The signature is wrong: another fleet issued the receipt, or it was changed.
    Unknown,
}

impl Receipts {
    /// Receipts signed with `key`. Without one, a random key serves a store that is not shared; on a shared store there are no
    /// receipts, since instances could not verify those of each other.
    pub(crate) fn new(key: Option<hmac::Key>, is_shared: bool) -> Result<Self, LimitError> {
        let limit = Limit::token_bucket(1, Rate::new(1, REPLAY_RETENTION)?)?;
        // No rule has a name with a space in it.
        let owner = "refund once";
        let stem = KeyStem::for_rule(owner, &limit, "");
        Ok(Self {
            signer: TextSigner::new(key, is_shared),
            // Every receipt is a subject, and two that share a limit could not both be refunded.
            once: Gate::new(owner, "", limit, Role::Enforced, stem).with_max_subjects(u64::MAX),
            clock: SystemClock::new(),
            instance: RandomState::new().hash_one("instance"),
            written: AtomicU64::new(0),
        })
    }

    /// Refuses a call that asks for a receipt where there are none.
    pub(crate) fn require(&self, is_requested: bool) -> Result<(), BadRequest> {
        match &self.signer {
            None if is_requested => {
                Err(BadRequest::new("receipt: there are none without a secret; set TIDEGATE_SECRET"))
            }
            _ => Ok(()),
        }
    }

    /// The text of a receipt, or none without a key. That of a decision with a lease has the identity of the lease.
    pub(crate) fn write(&self, receipt: &Receipt, lease: Option<LeaseIdentity>) -> Option<String> {
        let signer = self.signer.as_ref()?;
        let own = || LeaseIdentity { instance: self.instance, number: self.written.fetch_add(1, Ordering::Relaxed) };
        let LeaseIdentity { instance, number } = lease.unwrap_or_else(own);
        let mut payload = Vec::new();
        for part in [self.clock.now().as_micros(), instance, number] {
            payload.extend_from_slice(&part.to_be_bytes());
        }
        payload.extend_from_slice(&receipt.to_bytes());
        Some(signer.sign(&payload))
    }

    /// Returns the cost of a receipt, once.
    pub(crate) async fn refund<S: Store>(&self, limiter: &Limiter<S>, text: &str) -> Result<RefundOutcome, StoreError> {
        let Some((id, written, lease, bytes)) = self.read(text) else { return Ok(RefundOutcome::Unknown) };
        let Some(receipt) = Receipt::from_bytes(&bytes) else { return Ok(RefundOutcome::TooOld) };
        let now = self.clock.now();
        // A receipt from a clock that runs ahead would be valid for longer than its use is remembered.
        if now.since(written) > RECEIPT_VALIDITY || written.since(now) > RECEIPT_VALIDITY {
            return Ok(RefundOutcome::TooOld);
        }
        // A plan of one check always fits.
        let Ok(once) = Plan::new([Check::new(&self.once, id, 1)]) else { return Ok(RefundOutcome::Unknown) };
        let once = once.with_observed(false).with_on_failure(OnFailure::Closed);
        if !limiter.check_plan(&once).await?.is_allowed() {
            return Ok(RefundOutcome::AlreadyRefunded);
        }
        if let Some(slots) = Receipt::from_bytes(&bytes) {
            lease.end(limiter, slots).await;
        }
        limiter.refund(receipt).await.map(|()| RefundOutcome::Refunded)
    }

    /// The identity of a receipt, its time, the lease that it may have and its bytes, if the signature is right.
    fn read(&self, text: &str) -> Option<(Subject, Timestamp, LeaseIdentity, Vec<u8>)> {
        let (payload, signature) = self.signer.as_ref()?.verify(text, MAX_TEXT_BYTES)?;
        let (written, rest) = payload.split_first_chunk()?;
        let (instance, rest) = rest.split_first_chunk()?;
        let (number, receipt) = rest.split_first_chunk()?;
        let lease = LeaseIdentity { instance: u64::from_be_bytes(*instance), number: u64::from_be_bytes(*number) };
        let id = Subject::from_hash(u128::from_be_bytes(*signature.first_chunk()?));
        Some((id, Timestamp::from_micros(u64::from_be_bytes(*written)), lease, receipt.to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    use super::*;

    fn key(secret: &str) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes())
    }

    fn receipt() -> Receipt {
        use tidegate::{MemoryStore, Request, Rule, RuleSet};
        let rule = Rule::new("api", Limit::token_bucket(9, Rate::per_second(1).unwrap()).unwrap());
        let limiter = Limiter::new(RuleSet::new([rule]).unwrap(), MemoryStore::new());
        limiter.check_now(&Request::new("")).into_receipt()
    }

    #[test]
    fn only_the_key_that_signed_a_receipt_reads_it() {
        let receipts = |secret| Receipts::new(Some(key(secret)), true).unwrap();
        let text = receipts("a").write(&receipt(), None).unwrap();
        assert!(receipts("a").read(&text).is_some(), "another instance of the same fleet");
        assert!(receipts("b").read(&text).is_none());
    }

    #[test]
    fn one_changed_bit_anywhere_makes_a_receipt_unknown() {
        let receipts = Receipts::new(Some(key("a")), true).unwrap();
        let text = receipts.write(&receipt(), None).unwrap();
        let (payload, signature) = text.split_once('.').unwrap();
        let parts = [payload, signature].map(|part| URL_SAFE_NO_PAD.decode(part).unwrap());
        for (part, bytes) in parts.iter().enumerate() {
            for bit in 0..bytes.len() * 8 {
                let mut changed = parts.clone();
                changed[part][bit / 8] ^= 1 << (bit % 8);
                let changed = changed.map(|part| URL_SAFE_NO_PAD.encode(part)).join(".");
                assert!(receipts.read(&changed).is_none(), "bit {bit} of part {part}");
            }
        }
    }

    /// Receipts of version 1 did not say until when a take is missing from a bucket.
    #[tokio::test]
    async fn a_receipt_that_another_version_has_signed_is_too_old() {
        use tidegate::{MemoryStore, RuleSet};
        let limiter = Limiter::new(RuleSet::new([]).unwrap(), MemoryStore::new());
        let receipts = Receipts::new(Some(key("a")), true).unwrap();
        for (version, outcome) in [(1, RefundOutcome::TooOld), (2, RefundOutcome::Refunded), (3, RefundOutcome::TooOld)]
        {
            let mut payload = receipts.clock.now().as_micros().to_be_bytes().to_vec();
            payload.extend([[0; 8], [version; 8]].concat());
            payload.push(version);
            let signature = hmac::sign(&key("a"), &payload);
            let text = [payload.as_slice(), signature.as_ref()].map(|part| URL_SAFE_NO_PAD.encode(part)).join(".");
            assert_eq!(receipts.refund(&limiter, &text).await.unwrap(), outcome, "version {version}");
        }
    }

    #[test]
    fn a_shared_store_without_a_secret_has_no_receipts() {
        assert!(Receipts::new(None, true).unwrap().write(&receipt(), None).is_none());
        assert!(Receipts::new(None, false).unwrap().write(&receipt(), None).is_some());
    }
}
