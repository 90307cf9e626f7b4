//! `TenantSearch`: looks for a subject under the tenants that the rule file or the ledger names, for an operator who left the tenant out.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tidegate::attributes::TENANT;
use tidegate::spi::Plan;
use tidegate::{Limiter, Request};
use tidegate_rules::{RuleFile, SubjectStatus};

use super::buckets::Buckets;
use crate::engine::Engine;
use crate::engine::instrumented_store::InstrumentedStore;

/// The most tenants under which one call looks for a subject.
const MAX_TENANTS: usize = 500;

/// The rules that count the subject of each tenant separately, and the tenants under which it has state.
pub(super) struct TenantSearch {
    rules: Vec<String>,
    looked_up: usize,
    with_state: usize,
    /// Whether every tenant that has a name was looked up.
    is_complete: bool,
}

impl TenantSearch {
    /// Looks for the subject of `request`, which has no tenant, under these rules. `None` if there are none, or no request.
    pub(super) async fn run(
        engine: &Engine,
        (limiter, file): (&Limiter<InstrumentedStore>, &RuleFile),
        request: Option<&Request<'_>>,
        rules: Vec<String>,
    ) -> Option<Self> {
        let request = request.filter(|_| !rules.is_empty())?;
        let mut tenants: BTreeSet<String> = file.tenants().into_iter().map(str::to_owned).collect();
        let mut search = Self { rules, looked_up: 0, with_state: 0, is_complete: true };
        if let Some(ledger) = engine.ledger() {
            // One more than are looked up, to notice that there are more.
            match ledger.ledger().tenant_names(MAX_TENANTS as u32 + 1).await {
                Ok(names) => tenants.extend(names),
                Err(_) => search.is_complete = false,
            }
        }
        search.is_complete &= tenants.len() <= MAX_TENANTS;
        for tenant in tenants.iter().take(MAX_TENANTS) {
            let plans = search.plans(limiter, file, &request.clone().with_replaced_attribute(TENANT, tenant));
            let Ok(buckets) = Buckets::read(limiter, &plans, &BTreeSet::new()).await else {
                search.is_complete = false;
                break;
            };
            search.with_state += usize::from(buckets.has_state());
            search.looked_up += 1;
        }
        Some(search)
    }

    fn plans<'l>(
        &self,
        limiter: &'l Limiter<InstrumentedStore>,
        file: &RuleFile,
        request: &Request<'_>,
    ) -> Vec<Plan<'l>> {
        let mut plans = Vec::new();
        // A request that describes no subject was refused before.
        let _ = file.for_each_subject(request, &mut |rule, status, matched| {
            if status == SubjectStatus::Known && self.rules.iter().any(|one| one == rule) {
                plans.push(limiter.rules().resolve_match(matched));
            }
        });
        plans
    }

    pub(super) fn json(&self) -> Value {
        let Self { rules, looked_up, with_state, is_complete } = self;
        json!({ "rules": rules, "looked_up": looked_up, "with_state": with_state, "complete": is_complete })
    }

    /// What to add to the call.
    pub(super) fn hint(&self) -> String {
        format!(
            "{}: counted separately for each tenant, so add the `tenant`; of the {} tenants that the file or the ledger names, with state: {}.",
            self.rules.join(", "),
            self.looked_up,
            self.with_state
        )
    }
}
