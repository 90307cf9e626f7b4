//! `PlanCall`: a plan as the router sends it. If its caller goes away after it was sent, its keys are counted all the same.

use std::sync::Arc;
use std::time::Duration;

use tidegate::spi::{Check, Gate, Plan, PlanMode, Subject};

use crate::call::NodeRequest;
use crate::cardinality::CardinalityTracker;
use crate::connection::Epilogue;
use crate::node::Node;
use crate::node_error::NodeError;
use crate::packed_plan::PackedPlan;
use crate::reply::PlanReply;
use crate::timeouts::Timeouts;

/// A plan whose keys are in one slot.
pub(crate) struct PlanCall<'c, 'r> {
    pub(crate) packed: Arc<PackedPlan>,
    pub(crate) plan: &'c Plan<'r>,
    pub(crate) cardinality: &'c Arc<CardinalityTracker>,
    pub(crate) timeouts: Timeouts,
}

/// What counting the keys of a plan needs, without the plan's lifetime.
struct AbandonedPlan {
    checks: Vec<AbandonedCheck>,
    mode: PlanMode,
    max_units: u64,
    max_delay: Option<Duration>,
}

struct AbandonedCheck {
    gate: Gate,
    subject: Subject,
    cost: u64,
    is_anonymous: bool,
}

impl NodeRequest for PlanCall<'_, '_> {
    type Reply = PlanReply;

    fn timeouts(&self) -> Timeouts {
        self.timeouts
    }

    async fn send_to(&self, node: &Node, asking: bool) -> Result<PlanReply, NodeError> {
        node.decide(&self.packed, asking, self.timeouts, || self.epilogue()).await
    }
}

impl PlanCall<'_, '_> {
    /// Counts the keys of subjects in the reply. `None` if there are none to count.
    fn epilogue(&self) -> Option<Epilogue<PlanReply>> {
        if self.plan.is_peek() {
            return None;
        }
        let (plan, cardinality) = (AbandonedPlan::copy(self.plan), Arc::clone(self.cardinality));
        Some(Box::new(move |reply| plan.count_keys(reply, &cardinality)))
    }
}

impl AbandonedPlan {
    fn copy(plan: &Plan<'_>) -> Self {
        let check = |check: &Check<'_>| AbandonedCheck {
            gate: check.gate().clone(),
            subject: check.key().subject(),
            cost: check.cost(),
            is_anonymous: check.is_anonymous(),
        };
        Self {
            checks: plan.checks().iter().map(check).collect(),
            mode: plan.mode(),
            max_units: plan.max_units(),
            max_delay: plan.max_delay(),
        }
    }

    fn count_keys(&self, reply: PlanReply, cardinality: &CardinalityTracker) {
        let checks = self.checks.iter().map(|AbandonedCheck { gate, subject, cost, is_anonymous }| {
            Check::new(gate, *subject, *cost).with_anonymous(*is_anonymous)
        });
        let Ok(plan) = Plan::new(checks) else { return };
        let plan = plan.with_mode(self.mode).with_max_units(self.max_units);
        let plan = self.max_delay.map_or(plan.clone(), |delay| plan.with_max_delay(delay));
        if let Ok(reply) = reply.into_reply(&plan) {
            cardinality.record_decision(&plan, &reply, reply.verdict(&plan).checks());
        }
    }
}
