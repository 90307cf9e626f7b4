//! Receipts: what a check took, to be returned once, to any instance, for a refund.

use std::time::Duration;

use tidegate::grants::GrantError;
use tidegate::spi::Store;
use tidegate::{Clock, Ending, Grant, Limiter, StoreError, StoreErrorKind};

use super::{GrantIdentity, GrantTokenKind, GrantTokens, TokenProblem, ended_grants, leases};

/// The time in which a receipt can be refunded.
const RECEIPT_VALIDITY: Duration = Duration::from_hours(1);

/// How long the use of a receipt is remembered. Longer than it is valid, since clocks differ.
const REPLAY_RETENTION: Duration = Duration::from_hours(2);

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

impl GrantTokens {
    /// The receipt of a grant, or none without a key.
    pub(crate) fn receipt(&self, grant: &Grant, identity: GrantIdentity) -> Option<String> {
        self.issue(GrantTokenKind::Receipt, self.clock.now(), identity, grant)
    }

    /// Returns the cost of a receipt, once.
    pub(crate) async fn refund<S: Store>(
        &self,
        limiter: &Limiter<S>,
        receipt: &str,
    ) -> Result<RefundOutcome, StoreError> {
        let mut content = match self.read(GrantTokenKind::Receipt, receipt) {
            Ok(content) => content,
            Err(TokenProblem::OtherVersion) => return Ok(RefundOutcome::TooOld),
            Err(TokenProblem::Invalid) => return Ok(RefundOutcome::Unknown),
        };
        let (now, written) = (self.clock.now(), content.written);
        // A receipt from a clock that runs ahead would be valid for longer than its use is remembered.
        if now.since(written) > RECEIPT_VALIDITY || written.since(now) > RECEIPT_VALIDITY {
            return Ok(RefundOutcome::TooOld);
        }
        if !ended_grants::end(limiter, GrantTokenKind::Receipt, content.identity, REPLAY_RETENTION).await? {
            return Ok(RefundOutcome::AlreadyRefunded);
        }
        leases::end_lease(limiter, &content).await;
        match limiter.end(&mut content.grant, &Ending::Refund).await {
            Ok(()) => Ok(RefundOutcome::Refunded),
            Err(GrantError::Store(error)) => Err(error),
            Err(error) => Err(StoreError::new(StoreErrorKind::Unexpected, error.to_string())),
        }
    }
}
