//! Small files that each get one lint, and their fixes.

mod amounts;
mod anonymous;
mod cost;
mod failure;
mod identity;
mod ledger;
mod quotas;
mod reachability;
mod security;

use tidegate_rules::Severity;

/// A file that gets a lint, the position of the lint, and the fix.
pub(crate) struct Case {
    pub(crate) code: &'static str,
    pub(crate) severity: Severity,
    /// Line and column; the first line is `version: 1`.
    pub(crate) at: (usize, usize),
    pub(crate) file: &'static str,
    /// The fix: a text and its replacement.
    pub(crate) fix: (&'static str, &'static str),
}

const fn case(
    code: &'static str,
    severity: Severity,
    at: (usize, usize),
    file: &'static str,
    fix: (&'static str, &'static str),
) -> Case {
    Case { code, severity, at, file, fix }
}

/// The cases of all modules.
pub(crate) fn cases() -> impl Iterator<Item = &'static Case> {
    let first = identity::IDENTITY.iter().chain(&cost::COST).chain(&security::SECURITY);
    let second = reachability::REACHABILITY.iter().chain(&failure::FAILURE);
    first
        .chain(second)
        .chain(&amounts::LIMITS)
        .chain(&anonymous::ANONYMOUS)
        .chain(&quotas::QUOTAS)
        .chain(&ledger::LEDGER)
}
