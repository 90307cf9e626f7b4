//! `Leases`: the slots that a caller of `/v1/leases` holds, as a signed id that any instance with the same secret renews and releases.
//!
//! The payload of an id is one byte of version; the time of the take or of the last renewal and the length of the lease in
//! microseconds, the instance that wrote the first id, the number of the lease there, and the length of the next part, of eight
//! bytes each; the [receipt](Receipt::to_bytes) of the slots in the store; and the receipt of the slots in the memory of that
//! instance, taken while the store failed. Subjects are in it as keyed hashes only.
//!
//! A renewal takes a slot again that the store has lost, if less than a lease has passed since the time in the id. By the store alone, a
//! lost slot is not different from a released one, and a renewal may arrive after the release. So a release or refund first *ends* the lease: it
//! takes the only token of a bucket of that lease, which a renewal looks at after it has taken a slot again.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ring::hmac;
use tidegate::spi::{Check, Gate, KeyStem, Plan, Role, Store, Subject};
use tidegate::{
    Decision, Lease, LeaseError, Limit, Limiter, OnFailure, Rate, Receipt, StoreError, StoreErrorKind, Timestamp,
};

use super::api::BadRequest;
use super::signed_text::TextSigner;

/// The version of the payload.
const LAYOUT_VERSION: u8 = 1;

/// Longest id that is read. That of a plan with 32 limits is shorter.
const MAX_ID_BYTES: usize = 32 * 1024;

/// A lease counts as ended for this many of its lengths. More than one, since the clocks of instances differ.
const ENDED_FOR_LEASES: u32 = 2;

/// The owner of the buckets of ended leases. No rule has a name with a space in it.
const ENDED_OWNER: &str = "lease ended";

/// Writes the ids of leases, renews and releases them.
#[derive(Debug)]
pub(crate) struct Leases {
    /// None if instances have no secret in common.
    signer: Option<TextSigner>,
    /// Distinguishes the leases of instances; a counter distinguishes those of one.
    instance: u64,
    issued: AtomicU64,
}

/// A lease as its caller sees it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct IssuedLease {
    pub(crate) id: String,
    pub(crate) expires_in: Duration,
    pub(crate) identity: LeaseIdentity,
}

/// The instance that wrote the first id of a lease, and the number of the lease there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseIdentity {
    pub(crate) instance: u64,
    pub(crate) number: u64,
}

/// When slots were taken or renewed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseAge {
    /// A time of this instance.
    pub(crate) now: Timestamp,
    /// They were taken or renewed at most this long before it.
    pub(crate) age: Duration,
}

/// Why a lease was not renewed or released.
#[derive(Debug)]
pub(crate) enum LeaseProblem {
    /// No instance with this secret wrote the id.
    Invalid,
    /// Some of its slots are not held any more, or another instance holds them in its memory.
    NotHeld,
    Store(StoreError),
}

/// The content of an id.
#[derive(Debug, PartialEq, Eq)]
struct LeaseId {
    head: IdHead,
    stored: Receipt,
    local: Receipt,
}

/// The content of an id without the slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IdHead {
    /// When the slots were last known to be held, by the clock of an instance.
    confirmed: Timestamp,
    duration: Duration,
    identity: LeaseIdentity,
}

impl LeaseAge {
    /// Slots that are taken after `now`.
    pub(crate) const fn new(now: Timestamp) -> Self {
        Self { now, age: Duration::ZERO }
    }
}

impl Leases {
    /// Leases with ids signed with `key`. Without one, a random key serves a store that is not shared; on a shared store there are no
    /// leases, since instances could not verify the ids of each other.
    pub(crate) fn new(key: Option<hmac::Key>, is_shared: bool) -> Self {
        let instance = RandomState::new().hash_one("instance");
        Self { signer: TextSigner::new(key, is_shared), instance, issued: AtomicU64::new(0) }
    }

    /// Refuses a call that would get a lease where there are none.
    pub(crate) fn require(&self) -> Result<(), BadRequest> {
        match &self.signer {
            Some(_) => Ok(()),
            None => Err(BadRequest::new("lease: there are none without a secret; set TIDEGATE_SECRET")),
        }
    }

    /// The lease of a decision, if it holds slots.
    pub(crate) fn issue(&self, decision: &Decision, LeaseAge { now, age }: LeaseAge) -> Option<IssuedLease> {
        let (signer, lease) = (self.signer.as_ref()?, decision.lease()?);
        let number = self.issued.fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(age.as_micros()).unwrap_or(u64::MAX);
        let confirmed = Timestamp::from_micros(now.as_micros().saturating_sub(micros));
        let identity = LeaseIdentity { instance: self.instance, number };
        let head = IdHead { confirmed, duration: lease.duration(), identity };
        let id = head.sign(signer, &lease);
        Some(IssuedLease { id, expires_in: head.duration.saturating_sub(age), identity: head.identity })
    }

    /// Holds the slots of a lease for another length of it. A slot that the store has lost is taken again if less than that has passed
    /// since the last renewal, and if it fits. If some of the slots are not held any more, the others are released.
    pub(crate) async fn renew<S: Store>(
        &self,
        limiter: &Limiter<S>,
        id: &str,
        now: Timestamp,
    ) -> Result<IssuedLease, LeaseProblem> {
        let (signer, LeaseId { head, stored, local }) = self.read(id)?;
        let may_be_lost = head.is_recent(now) && !stored.is_empty();
        let Some(lease) = Lease::from_receipts(stored, local, limiter.rules()) else {
            // Nothing limits this work any more.
            return Ok(IssuedLease { id: id.to_owned(), expires_in: head.duration, identity: head.identity });
        };
        let renewed = match limiter.renew(&lease).await {
            Err(LeaseError::NotHeld) if may_be_lost => match limiter.renew_or_retake(&lease).await {
                Ok(()) => match head.is_ended(limiter).await {
                    Ok(false) => Ok(()),
                    Ok(true) => Err(LeaseError::NotHeld),
                    Err(error) => {
                        // It may have ended, and then nobody would release the slot that was just taken.
                        limiter.release_soon(lease);
                        return Err(error.into());
                    }
                },
                result => result,
            },
            result => result,
        };
        match renewed {
            Ok(()) => {
                let head = IdHead { confirmed: now, duration: lease.duration(), ..head };
                let id = head.sign(signer, &lease);
                Ok(IssuedLease { id, expires_in: head.duration, identity: head.identity })
            }
            Err(error) => {
                if matches!(error, LeaseError::NotHeld) {
                    // Before the answer: whoever reads it may take the slot.
                    let _ = limiter.release(lease).await;
                }
                Err(error.into())
            }
        }
    }

    /// Releases the slots of a lease. It is not held after that, whatever arrives later.
    pub(crate) async fn release<S: Store>(&self, limiter: &Limiter<S>, id: &str) -> Result<(), LeaseProblem> {
        let (_, LeaseId { head, stored, local }) = self.read(id)?;
        if !stored.is_empty() {
            // A store that is out of memory cannot keep it, but can release the slot. Then a late renewal may take it for one more lease.
            drop(head.end(limiter).await);
        }
        // A limit that does not exist any more has no slots.
        let Some(lease) = Lease::from_receipts(stored, local, limiter.rules()) else { return Ok(()) };
        Ok(limiter.release(lease).await?)
    }

    /// The content of an id.
    fn read(&self, id: &str) -> Result<(&TextSigner, LeaseId), LeaseProblem> {
        let signer = self.signer.as_ref().ok_or(LeaseProblem::Invalid)?;
        let (payload, _) = signer.verify(id, MAX_ID_BYTES).ok_or(LeaseProblem::Invalid)?;
        // Another version of this server has signed it. Its slots run out.
        LeaseId::from_bytes(&payload).map(|id| (signer, id)).ok_or(LeaseProblem::NotHeld)
    }
}

impl LeaseIdentity {
    /// Ends the lease whose slots are in `receipt`, before they are refunded. A receipt without slots has no lease.
    pub(crate) async fn end<S: Store>(self, limiter: &Limiter<S>, receipt: Receipt) {
        if let Some(lease) = Lease::from_stored(receipt, limiter.rules()) {
            let head = IdHead { confirmed: Timestamp::from_micros(0), duration: lease.duration(), identity: self };
            // As in a release: a store that cannot keep it can return the slots.
            drop(head.end(limiter).await);
        }
    }
}

impl LeaseId {
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes.strip_prefix(&[LAYOUT_VERSION])?;
        let mut number = || {
            let (number, after) = rest.split_first_chunk()?;
            rest = after;
            Some(u64::from_be_bytes(*number))
        };
        let head = IdHead {
            confirmed: Timestamp::from_micros(number()?),
            duration: Duration::from_micros(number()?),
            identity: LeaseIdentity { instance: number()?, number: number()? },
        };
        let stored_bytes = usize::try_from(number()?).ok()?;
        let (stored, local) = rest.split_at_checked(stored_bytes)?;
        Some(Self { head, stored: Receipt::from_bytes(stored)?, local: Receipt::from_bytes(local)? })
    }
}

impl IdHead {
    /// The id of a lease.
    fn sign(&self, signer: &TextSigner, lease: &Lease) -> String {
        let (stored, local) = (lease.stored().to_bytes(), lease.local().to_bytes());
        let mut payload = vec![LAYOUT_VERSION];
        let micros = u64::try_from(self.duration.as_micros()).unwrap_or(u64::MAX);
        for number in
            [self.confirmed.as_micros(), micros, self.identity.instance, self.identity.number, stored.len() as u64]
        {
            payload.extend_from_slice(&number.to_be_bytes());
        }
        payload.extend_from_slice(&stored);
        payload.extend_from_slice(&local);
        signer.sign(&payload)
    }

    /// Whether less than the lease has passed since the slots were last known to be held. The clock of the instance that wrote the id may
    /// run ahead.
    fn is_recent(&self, now: Timestamp) -> bool {
        now.since(self.confirmed) < self.duration && self.confirmed.since(now) < self.duration
    }

    /// Ends the lease, if it has not ended before.
    async fn end<S: Store>(&self, limiter: &Limiter<S>) -> Result<(), StoreError> {
        let gate = self.ended_gate()?;
        limiter.check_plan(&self.ended_plan(&gate)?).await.map(drop)
    }

    /// Whether the lease has ended.
    async fn is_ended<S: Store>(&self, limiter: &Limiter<S>) -> Result<bool, StoreError> {
        let gate = self.ended_gate()?;
        let decision = limiter.check_plan(&self.ended_plan(&gate)?.with_peek()).await?;
        Ok(!decision.is_allowed())
    }

    /// The bucket whose only token the end of the lease takes.
    fn ended_gate(&self) -> Result<Gate, StoreError> {
        let failed = |_| StoreError::new(StoreErrorKind::Unexpected, "the length of the lease is invalid");
        let rate = Rate::new(1, self.duration.saturating_mul(ENDED_FOR_LEASES)).map_err(failed)?;
        let limit = Limit::token_bucket(1, rate).map_err(failed)?;
        let stem = KeyStem::for_rule(ENDED_OWNER, &limit, "");
        // Every lease is a subject, and two that share a bucket could not both end.
        Ok(Gate::new(ENDED_OWNER, "", limit, Role::Enforced, stem).with_max_subjects(u64::MAX))
    }

    fn ended_plan<'g>(&self, gate: &'g Gate) -> Result<Plan<'g>, StoreError> {
        let subject = Subject::from_hash(u128::from(self.identity.instance) << 64 | u128::from(self.identity.number));
        let plan = Plan::new([Check::new(gate, subject, 1)]);
        let plan = plan.map_err(|error| StoreError::new(StoreErrorKind::Unexpected, error.to_string()))?;
        Ok(plan.with_observed(false).with_on_failure(OnFailure::Closed))
    }
}

impl From<LeaseError> for LeaseProblem {
    fn from(error: LeaseError) -> Self {
        match error {
            LeaseError::Store(error) => Self::Store(error),
            _ => Self::NotHeld,
        }
    }
}

impl From<StoreError> for LeaseProblem {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}
