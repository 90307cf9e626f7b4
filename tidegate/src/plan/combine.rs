//! Combining plans: those of several requests into one, and those of several readings of one request.

use super::Plan;
use crate::RequestProblem;
use crate::decision::BudgetShare;
use crate::http::ErrorFormat;

/// Combining plans
impl<'r> Plan<'r> {
    /// Merges the plans of two requests into one that passes as a whole or not at all. The costs of checks with the same key add
    /// up. If one of them has a [problem](Self::problem), the result has no checks and that problem.
    pub fn merge(mut self, other: &Plan<'r>) -> Self {
        // A plan without checks, such as that which a front end begins with, is no request that a limit counts.
        let requests = |plan: &Self| if plan.checks.is_empty() { 0 } else { plan.requests };
        self.requests = (requests(&self) + requests(other)).max(1);
        if let Some(problem) = self.problem().or(other.problem()) {
            return self.with_problem(problem.clone(), self.error_format().max(other.error_format()));
        }
        self.body_use = self.body_use.unite(other.body_use);
        self.skipped_shadow.extend_from_slice(&other.skipped_shadow);
        for (index, check) in other.checks.iter().enumerate() {
            let at = self.checks.iter().position(|own| own.key() == check.key()).unwrap_or(self.checks.len());
            let parts = || other.budget_shares.iter().filter(|part| part.check == index);
            // The costs of rules that share the check are added separately.
            let own = check.cost().saturating_sub(parts().map(|part| part.cost).fold(0, u64::saturating_add));
            self.add(check.with_cost(own), true);
            // A shadow check may have been left out.
            let Some(joined) = self.checks.get_mut(at) else { continue };
            for part in parts() {
                joined.add_cost(part.cost);
                self.budget_shares.push(BudgetShare { check: at, ..part.clone() });
            }
        }
        self
    }

    /// Unites the plans of two [readings](crate::attributes::PathReadings) of one request. Of checks with the same key, the larger
    /// cost counts. If one of them has a [problem](Self::problem), the result has no checks and that problem.
    pub fn unite(mut self, other: &Plan<'r>) -> Self {
        if let Some(problem) = self.problem().or(other.problem()) {
            return self.with_problem(problem.clone(), self.error_format().max(other.error_format()));
        }
        self.body_use = self.body_use.unite(other.body_use);
        for gate in &other.skipped_shadow {
            if !self.skipped_shadow.iter().any(|own| std::ptr::eq(*own, *gate)) {
                self.skipped_shadow.push(gate);
            }
        }
        for (index, check) in other.checks.iter().enumerate() {
            let at = self.checks.iter().position(|own| own.key() == check.key()).unwrap_or(self.checks.len());
            let replaces_cost = if let Some(own) = self.checks.get_mut(at) {
                let is_larger = check.cost() > own.cost();
                own.unite(check);
                is_larger
            } else {
                self.add(*check, false);
                // A shadow check may have been left out.
                at < self.checks.len()
            };
            if replaces_cost {
                self.budget_shares.retain(|share| share.check != at);
                let shares = other.budget_shares.iter().filter(|share| share.check == index);
                self.budget_shares.extend(shares.map(|share| BudgetShare { check: at, ..share.clone() }));
            }
        }
        self
    }

    /// The same request, which cannot be judged.
    fn with_problem(&self, problem: RequestProblem, format: Option<ErrorFormat>) -> Self {
        let Self { origin, requests, .. } = *self;
        Self { requests, origin, ..Self::refused_in(format, problem) }
    }
}
