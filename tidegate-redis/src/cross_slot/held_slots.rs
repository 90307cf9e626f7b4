//! Slots of concurrency limits that parts of a denied plan took: a denied request holds none, even if each check counts on its own.

use tidegate::spi::algorithm::TakePosition;
use tidegate::spi::{Plan, Verdict};

use super::part::PlanPart;
use super::pending_refunds::PendingRefunds;
use crate::deadline::Deadline;
use crate::store::RedisStore;

impl RedisStore {
    /// Releases the slots that `parts` took, and shows the limits as they are then.
    pub(super) async fn release_slots(
        &self,
        parts: &[&PlanPart<'_>],
        verdicts: &mut [Option<Verdict>],
        refunds: &mut PendingRefunds<'_, '_>,
        deadline: Deadline,
    ) {
        if !refunds.keep_slots() {
            return;
        }
        refunds.refund().await;
        let limit = deadline.time_for_details();
        for (part, verdict) in parts.iter().zip(verdicts).filter_map(|(part, verdict)| Some((part, verdict.as_mut()?)))
        {
            for (check, result) in part.plan.checks().iter().zip(verdict.checks_mut()) {
                if !result.consumed || !check.gate().limit().has_slots() {
                    continue;
                }
                let peeked = match Plan::new([*check]) {
                    Ok(alone) => self.peek_part(&alone, limit, deadline).await,
                    Err(_) => None,
                };
                if let Some([peeked]) = peeked.as_ref().map(Verdict::checks) {
                    *result = *peeked;
                } else {
                    (result.consumed, result.position) = (false, TakePosition::default());
                }
            }
        }
    }
}
