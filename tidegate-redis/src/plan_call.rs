//! `PlanCall`: a plan as the router sends it. If its caller goes away after it was sent, its keys are counted all the same.

use std::sync::Arc;
use std::time::Duration;

use tidegate::spi::{Check, Gate, Plan, PlanMode, ReservationTerms, Subject};

use crate::call::NodeRequest;
use crate::cardinality::CardinalityTracker;
use crate::connection::Epilogue;
use crate::node::RedisNode;
use crate::node_error::NodeError;
use crate::outbox::{LedgerPartitions, ledger_partitions};
use crate::packed_plan::PackedPlan;
use crate::reply::PlanReply;
use crate::timeouts::Timeouts;

/// A plan whose keys are in one slot.
pub(crate) struct PlanCall<'c, 'r> {
    pub(crate) packed: Arc<PackedPlan>,
    pub(crate) plan: &'c Plan<'r>,
    pub(crate) cardinality: &'c Arc<CardinalityTracker>,
    pub(crate) ledger: &'c Arc<LedgerPartitions>,
    pub(crate) timeouts: Timeouts,
}

/// What counting the keys of a plan needs, without the plan's lifetime.
struct AbandonedPlan {
    checks: Vec<AbandonedCheck>,
    mode: PlanMode,
    max_units: u64,
    max_delay: Option<Duration>,
    reservation: Option<ReservationTerms>,
}

struct AbandonedCheck {
    gate: Gate,
    subject: Subject,
    cost: u64,
    is_anonymous: bool,
    settles_by_usage: bool,
}

impl NodeRequest for PlanCall<'_, '_> {
    type Reply = PlanReply;

    fn timeouts(&self) -> Timeouts {
        self.timeouts
    }

    async fn send_to(&self, node: &RedisNode, asking: bool) -> Result<PlanReply, NodeError> {
        node.decide(&self.packed, asking, self.timeouts, || self.epilogue()).await
    }
}

impl PlanCall<'_, '_> {
    /// Counts the keys of subjects in the reply, and marks the outboxes that were written to. `None` if there is nothing to do.
    fn epilogue(&self) -> Option<Epilogue<PlanReply>> {
        if self.plan.is_peek() {
            return None;
        }
        let (plan, cardinality) = (AbandonedPlan::copy(self.plan), Arc::clone(self.cardinality));
        let (partitions, ledger) = (ledger_partitions(self.plan), Arc::clone(self.ledger));
        Some(Box::new(move |reply| {
            drop(ledger.mark_after(partitions));
            plan.count_keys(reply, &cardinality);
        }))
    }
}

impl AbandonedPlan {
    fn copy(plan: &Plan<'_>) -> Self {
        let check = |check: &Check<'_>| AbandonedCheck {
            gate: check.gate().clone(),
            subject: check.key().subject(),
            cost: check.cost(),
            is_anonymous: check.is_anonymous(),
            settles_by_usage: check.settles_by_usage(),
        };
        Self {
            checks: plan.checks().iter().map(check).collect(),
            mode: plan.mode(),
            max_units: plan.max_units(),
            max_delay: plan.max_delay(),
            reservation: plan.reservation().copied(),
        }
    }

    fn count_keys(&self, reply: PlanReply, cardinality: &CardinalityTracker) {
        let checks = self.checks.iter().map(|check| {
            let AbandonedCheck { gate, subject, cost, is_anonymous, settles_by_usage } = check;
            Check::new(gate, *subject, *cost).with_anonymous(*is_anonymous).with_usage(*settles_by_usage)
        });
        let Ok(plan) = Plan::new(checks) else { return };
        let plan = plan.with_mode(self.mode).with_max_units(self.max_units);
        let plan = self.max_delay.map_or(plan.clone(), |delay| plan.with_max_delay(delay));
        let plan = self.reservation.map_or(plan.clone(), |terms| plan.with_reservation(terms));
        if let Ok(reply) = reply.into_reply(&plan) {
            cardinality.record_decision(&plan, &reply, reply.verdict(&plan).checks());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply::Repeat;
    use tidegate::rules::UsageKind;
    use tidegate::spi::LeaseOwner;
    use tidegate::{Limit, Rule, Timestamp};

    const NOW: u64 = 1_800_000_000_000_000;
    const MINUTE: Duration = Duration::from_secs(60);

    /// A hold of nothing creates a key, which lasts as long as the reservation may; a repeated one creates none.
    #[test]
    fn the_keys_of_abandoned_reservations_are_counted() {
        let limit = Limit::fixed_window(5, Duration::from_secs(1)).unwrap();
        let rule = Rule::new("tokens", limit).with_per(["user"]).with_usage(UsageKind::Total).with_max_subjects(100);
        let gate = Gate::new(rule, "", limit);
        let cardinality = CardinalityTracker::default();
        let count = |text: &str, now: u64| {
            let terms = ReservationTerms::new(LeaseOwner::from_number(9).unwrap(), MINUTE, true).with_usage_only();
            let plan = Plan::new([Check::new(&gate, Subject::from_hash(1), 0)]).unwrap().with_reservation(terms);
            let reply = PlanReply::new(Timestamp::from_micros(now), Repeat { index: 0, count: 1 }, text.as_bytes());
            AbandonedPlan::copy(&plan).count_keys(reply, &cardinality);
            cardinality.stats(false).iter().map(|rule| (rule.created, rule.keys)).collect::<Vec<_>>()
        };
        assert_eq!(count("a", NOW), [(1, 1)]);
        let again = format!("rah0,{},1", NOW + 60_000_000);
        assert_eq!(count(&again, NOW + 30_000_000), [(1, 1)], "the key has not expired after a window");
    }
}
