//! Compiling `concurrency`: the number of slots, and a lease that its holders can renew.

use std::time::Duration;

use tidegate::Limit;

use super::Compiler;
use crate::quantity::format_duration;
use crate::schema_types::{ConcurrencySpec, RuleSpec};

/// The default lease: long enough for a server to fail over, short enough to wait for after a crash.
const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// Holders renew after a third of the lease, so that two renewals may fail. A call to the store may take up to its deadline, of tens
/// of milliseconds, and a shorter lease would not have the time for three of them.
const MIN_LEASE: Duration = Duration::from_secs(1);

/// The slots of a holder that has died are taken for so long.
const MAX_LEASE: Duration = Duration::from_secs(24 * 60 * 60);

impl Compiler<'_> {
    /// A concurrency limit; `None` after an error.
    pub(super) fn concurrency(&mut self, spec: &ConcurrencySpec) -> Option<Limit> {
        let lease = match &spec.lease {
            None => Some(DEFAULT_LEASE),
            Some(at) => self.duration(at).filter(|lease| {
                let (problem, help) = if *lease < MIN_LEASE {
                    (
                        format!("is too short to be renewed: a lease has at least {}", format_duration(MIN_LEASE)),
                        "holders renew after a third of it; `lease: 30s` is usual",
                    )
                } else if *lease > MAX_LEASE {
                    (
                        format!("is too long: a lease has at most {}", format_duration(MAX_LEASE)),
                        "the slots of a holder that dies are taken for so long; holders that live renew, however long they run",
                    )
                } else {
                    return true;
                };
                let message = format!("{} {problem}", format_duration(*lease));
                self.error("concurrency", &at.span, message).set_help(help);
                false
            }),
        };
        let max = spec.max.as_ref().and_then(|at| {
            self.check_value("concurrency", at.value.0, &at.span, |max| Limit::concurrency(max, DEFAULT_LEASE))
        });
        // Every lease within the bounds is valid.
        Limit::concurrency(max?, lease?).ok()
    }

    /// Reports `denial_cache: true` on a rule that can never use it: slots are released at any time.
    pub(super) fn check_denial_cache(&mut self, rule: &RuleSpec, limits: &[(smol_str::SmolStr, Limit)]) {
        if let Some(at) = rule.denial_cache.as_ref().filter(|at| at.value)
            && limits.iter().all(|(_, limit)| limit.has_slots())
        {
            let message = "denials of a concurrency limit are never cached: a slot may be released at any time";
            self.error("concurrency", &at.span, message).set_help("remove `denial_cache`");
        }
    }
}
