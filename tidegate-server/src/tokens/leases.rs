//! Leases: the slots that a caller of `/v1/leases` holds, renewed and released by their id on any instance.
//!
//! A renewal takes a slot again that the store has lost, if less than a lease has passed since the time in the id. A release or refund first
//! [ends](ended_grants) the lease, which a renewal looks at after it has taken a slot again.

use std::time::Duration;

use tidegate::grants::{GrantError, GrantKind, GrantPart, Retake};
use tidegate::spi::Store;
use tidegate::{Ending, Grant, Limiter, StoreError, Timestamp};

use super::{GrantIdentity, GrantTokenKind, GrantTokens, TokenContent, TokenProblem, ended_grants};

/// A lease counts as ended for this many of its lengths. More than one, since the clocks of instances differ.
const ENDED_FOR_LEASES: u32 = 2;

/// A lease as its caller sees it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct IssuedLease {
    pub(crate) id: String,
    pub(crate) expires_in: Duration,
}

/// When slots were taken or renewed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseAge {
    /// A time of this instance.
    pub(crate) now: Timestamp,
    /// Whether the request has waited for its place in a queue until then. In the meantime, slots are renewed after each third of their lease.
    pub(crate) waited: bool,
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

impl GrantTokens {
    /// The lease of the slots of a decision with this delay, if it holds some.
    pub(crate) fn lease(
        &self,
        slots: &Grant,
        identity: GrantIdentity,
        LeaseAge { now, waited }: LeaseAge,
        delay: Duration,
    ) -> Option<IssuedLease> {
        let length = slots.duration()?;
        let age = if waited { delay.min(length / 3) } else { Duration::ZERO };
        let micros = u64::try_from(age.as_micros()).unwrap_or(u64::MAX);
        let confirmed = Timestamp::from_micros(now.as_micros().saturating_sub(micros));
        let id = self.issue(GrantTokenKind::Lease, confirmed, identity, slots)?;
        Some(IssuedLease { id, expires_in: length.saturating_sub(age) })
    }

    /// Holds the slots of a lease for another length of it. A slot that the store has lost is taken again if less than that has passed
    /// since the last renewal, and if it fits. If some of the slots are not held any more, the others are released.
    pub(crate) async fn renew_lease<S: Store>(
        &self,
        limiter: &Limiter<S>,
        id: &str,
        now: Timestamp,
    ) -> Result<IssuedLease, LeaseProblem> {
        let mut lease = self.read_lease(id)?;
        let length = lease.grant.duration().unwrap_or_default();
        let Some(current) = lease.grant.current_lease(limiter.rules()) else {
            // Nothing limits this work any more.
            return Ok(IssuedLease { id: id.to_owned(), expires_in: length });
        };
        let may_be_lost = lease.is_recent(now, length) && lease.grant.parts().iter().any(|part| !part.is_local());
        let renewed = match limiter.renew(&lease.grant, Retake::No).await {
            Err(GrantError::NotHeld) if may_be_lost => match limiter.renew(&lease.grant, Retake::IfLost).await {
                Ok(()) => match lease.has_ended(limiter, length).await {
                    Ok(false) => Ok(()),
                    Ok(true) => Err(GrantError::NotHeld),
                    Err(error) => {
                        // It may have ended, and then nobody would release the slot that was just taken.
                        limiter.spawn_end(lease.grant, &Ending::Release);
                        return Err(error.into());
                    }
                },
                result => result,
            },
            result => result,
        };
        match renewed {
            Ok(()) => {
                lease.grant.update_leases(limiter.rules());
                let id = self
                    .issue(GrantTokenKind::Lease, now, lease.identity, &lease.grant)
                    .ok_or(LeaseProblem::Invalid)?;
                Ok(IssuedLease { id, expires_in: current })
            }
            Err(error) => {
                if matches!(error, GrantError::NotHeld) {
                    // Before the answer: whoever reads it may take the slot.
                    let _ = limiter.end(&mut lease.grant, &Ending::Release).await;
                }
                Err(error.into())
            }
        }
    }

    /// Releases the slots of a lease. It is not held after that, whatever arrives later.
    pub(crate) async fn release_lease<S: Store>(&self, limiter: &Limiter<S>, id: &str) -> Result<(), LeaseProblem> {
        let mut lease = self.read_lease(id)?;
        end_lease(limiter, &lease).await;
        // A limit that does not exist any more has no slots.
        Ok(limiter.end(&mut lease.grant, &Ending::Release).await?)
    }

    fn read_lease(&self, id: &str) -> Result<TokenContent, LeaseProblem> {
        self.read(GrantTokenKind::Lease, id).map_err(|problem| match problem {
            TokenProblem::Invalid => LeaseProblem::Invalid,
            // Its slots run out.
            TokenProblem::OtherVersion => LeaseProblem::NotHeld,
        })
    }
}

impl TokenContent {
    /// Whether less than the lease has passed since the slots were last known to be held. The clock of the instance that wrote the id may
    /// run ahead.
    fn is_recent(&self, now: Timestamp, lease: Duration) -> bool {
        now.since(self.written) < lease && self.written.since(now) < lease
    }

    async fn has_ended<S: Store>(&self, limiter: &Limiter<S>, lease: Duration) -> Result<bool, StoreError> {
        let retention = lease.saturating_mul(ENDED_FOR_LEASES);
        ended_grants::has_ended(limiter, GrantTokenKind::Lease, self.identity, retention).await
    }
}

/// Ends the lease of a grant before its slots are released or refunded, if some are in the store.
pub(super) async fn end_lease<S: Store>(limiter: &Limiter<S>, content: &TokenContent) {
    let stored = content.grant.parts().iter().filter(|part| part.kind() == GrantKind::Slot && !part.is_local());
    let Some(lease) = stored.filter_map(GrantPart::duration).min() else { return };
    let retention = lease.saturating_mul(ENDED_FOR_LEASES);
    // A store that is out of memory cannot keep it, but can release the slot. Then a late renewal may take it for one more lease.
    let _ = ended_grants::end(limiter, GrantTokenKind::Lease, content.identity, retention).await;
}

impl From<GrantError> for LeaseProblem {
    fn from(error: GrantError) -> Self {
        match error {
            GrantError::Store(error) => Self::Store(error),
            _ => Self::NotHeld,
        }
    }
}

impl From<StoreError> for LeaseProblem {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}
