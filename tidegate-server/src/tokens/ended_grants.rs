//! The register of grants that have ended by a token, so that an ending happens once: on the same store as all limits, and itself a limit. Each
//! grant has a bucket with one token for each kind of its tokens, which the ending takes.
//!
//! By the store alone, a lost slot is not different from a released one, and a renewal may arrive after the release. So a renewal that takes a
//! slot again looks here afterwards. If the store fails between the ending here and that of the grant, the ending is lost: limits are stricter
//! than necessary then, and never looser.

use std::time::Duration;

use tidegate::spi::{Check, Gate, Plan, Store, Subject};
use tidegate::{Limit, Limiter, OnFailure, Rate, Rule, StoreError, StoreErrorKind};

use super::{GrantIdentity, GrantTokenKind};

/// The owner of the buckets. No rule has a name with a space in it.
const OWNER: &str = "grant ended";

/// Ends a grant for tokens of this kind. Returns whether it had not ended before. It is remembered for `retention`.
pub(super) async fn end<S: Store>(
    limiter: &Limiter<S>,
    kind: GrantTokenKind,
    identity: GrantIdentity,
    retention: Duration,
) -> Result<bool, StoreError> {
    let gate = gate(retention)?;
    Ok(limiter.plans().check(&plan(&gate, kind, identity)?).await?.is_allowed())
}

/// Whether a grant has ended for tokens of this kind.
pub(super) async fn has_ended<S: Store>(
    limiter: &Limiter<S>,
    kind: GrantTokenKind,
    identity: GrantIdentity,
    retention: Duration,
) -> Result<bool, StoreError> {
    let gate = gate(retention)?;
    Ok(!limiter.plans().check(&plan(&gate, kind, identity)?.with_peek()).await?.is_allowed())
}

fn gate(retention: Duration) -> Result<Gate, StoreError> {
    let failed = |_| StoreError::new(StoreErrorKind::Unexpected, "the length of the lease is invalid");
    let limit = Limit::token_bucket(1, Rate::new(1, retention).map_err(failed)?).map_err(failed)?;
    // Every grant is a subject, and two that share a bucket could not both end.
    let rule = Rule::new(OWNER, limit).with_per(["grant"]).with_max_subjects(u64::MAX);
    Ok(Gate::new(rule, "", limit))
}

fn plan(gate: &Gate, kind: GrantTokenKind, identity: GrantIdentity) -> Result<Plan<'_>, StoreError> {
    // Two bits are enough for the kinds.
    let number = identity.number << 2 | u64::from(kind as u8);
    let subject = Subject::from_hash(u128::from(identity.instance) << 64 | u128::from(number));
    let plan = Plan::new([Check::new(gate, subject, 1)]);
    let plan = plan.map_err(|error| StoreError::new(StoreErrorKind::Unexpected, error.to_string()))?;
    Ok(plan.with_observed(false).with_on_failure(OnFailure::Closed))
}
