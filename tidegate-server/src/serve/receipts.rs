//! `Receipts`: what a check consumed, as a text that its caller keeps and may bring back once, to any instance. Signed with the
//! secret of the fleet, so that nobody gets back what was never taken.
//!
//! That a receipt is used once is itself a limit: one refund for each, on the same store as all the others. If the store fails
//! between that and the refund, the refund is lost, which leaves a limit stricter than it could be and never looser.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tidegate::spi::{Check, Gate, KeyStem, Plan, Role, Store, Subject, SubjectHasher};
use tidegate::{Clock, Limit, LimitError, Limiter, Rate, Receipt, Secret, StoreError, SystemClock, Timestamp};

use super::api::Refusal;

/// How long a receipt is good for.
const LIFE: Duration = Duration::from_secs(3600);

/// How long it is remembered that one was used: longer, since clocks differ.
const MEMORY: Duration = Duration::from_secs(2 * 3600);

/// No receipt of a plan is longer: it has at most 32 checks.
const LONGEST: usize = 64 * 1024;

/// Writes receipts, and takes them back.
#[derive(Debug)]
pub(crate) struct Receipts {
    /// None where nobody could tell ours from those that others have written.
    signer: Option<SubjectHasher>,
    once: Gate,
    clock: SystemClock,
    /// Tells receipts of different instances apart, and those of one by their number.
    instance: u64,
    written: AtomicU64,
}

/// What came of a receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refunded {
    /// It was given back, as far as its window, slice, entry or place in the queue is still there.
    Done,
    Already,
    TooOld,
    /// It was not written by this fleet, or was changed since.
    Foreign,
}

impl Receipts {
    /// Receipts of a fleet with this secret. Without one, those of a single instance have one of their own, and on a store
    /// that is shared there are none: everybody could sign them.
    pub(crate) fn new(secret: Option<&Secret>, is_shared: bool) -> Result<Self, LimitError> {
        let instance = RandomState::new().hash_one("instance");
        let own = || Secret::new([instance, RandomState::new().hash_one("secret")].map(u64::to_be_bytes).concat());
        let secret = secret.cloned().or_else(|| (!is_shared).then(own));
        let limit = Limit::token_bucket(1, Rate::new(1, MEMORY)?)?;
        // No rule has a name with a space in it.
        let owner = "refund once";
        let stem = KeyStem::for_rule(owner, &limit, "");
        Ok(Self {
            signer: secret.map(|secret| secret.hasher(["signed receipt", "of what was consumed"])),
            once: Gate::new(owner, "", limit, Role::Enforced, stem),
            clock: SystemClock::new(),
            instance,
            written: AtomicU64::new(0),
        })
    }

    /// Refuses a call that wants a receipt where there are none.
    pub(crate) fn ready(&self, wanted: bool) -> Result<(), Refusal> {
        match &self.signer {
            None if wanted => Err(Refusal::new("receipt: there are none without a secret; set TIDEGATE_SECRET")),
            _ => Ok(()),
        }
    }

    /// The text of a receipt; none where it could not be told from those of others.
    pub(crate) fn write(&self, receipt: &Receipt) -> Option<String> {
        let number = self.written.fetch_add(1, Ordering::Relaxed);
        let mut bytes = Vec::new();
        for part in [self.clock.now().as_micros(), self.instance, number] {
            bytes.extend_from_slice(&part.to_be_bytes());
        }
        bytes.extend_from_slice(&receipt.to_bytes());
        let text = URL_SAFE_NO_PAD.encode(bytes);
        let signature = self.sign(&text)?;
        Some(format!("{text}.{signature}"))
    }

    /// Gives back what a receipt says, once.
    pub(crate) async fn refund<S: Store>(&self, limiter: &Limiter<S>, text: &str) -> Result<Refunded, StoreError> {
        let Some((id, written, receipt)) = self.read(text) else { return Ok(Refunded::Foreign) };
        let now = self.clock.now();
        // From a clock that runs ahead it would be good for longer than it is remembered.
        if now.since(written) > LIFE || written.since(now) > LIFE {
            return Ok(Refunded::TooOld);
        }
        // A plan of one check is always a plan.
        let Ok(used) = Plan::new([Check::new(&self.once, id, 1)]) else { return Ok(Refunded::Foreign) };
        if !limiter.check_plan(&used.with_observed(false).with_on_failure(OnFailure::Closed)).await?.is_allowed() {
            return Ok(Refunded::Already);
        }
        limiter.refund(receipt).await.map(|()| Refunded::Done)
    }

    /// Who it is, when it was written, and what it says.
    fn read(&self, text: &str) -> Option<(Subject, Timestamp, Receipt)> {
        let (text, signature) = text.rsplit_once('.').filter(|_| text.len() <= LONGEST)?;
        let id = self.sign(text)?;
        if id.to_string() != signature {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (written, rest) = bytes.split_first_chunk()?;
        let receipt = Receipt::from_bytes(rest.get(16..)?)?;
        Some((id, Timestamp::from_micros(u64::from_be_bytes(*written)), receipt))
    }

    fn sign(&self, text: &str) -> Option<Subject> {
        Some(self.signer.as_ref()?.subject([Some(text), None].into_iter()))
    }
}
