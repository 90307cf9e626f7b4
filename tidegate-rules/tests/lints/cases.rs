//! The mistakes, each as a small file, and what mends it.

mod amounts;
mod anonymous;
mod cost;
mod identity;
mod reachability;
mod security;

use tidegate_rules::Severity;

/// A file that draws a lint, where, and how to mend it.
pub(crate) struct Case {
    pub(crate) code: &'static str,
    pub(crate) severity: Severity,
    /// Line and column; the first line is `version: 1`.
    pub(crate) at: (usize, usize),
    pub(crate) file: &'static str,
    /// What to replace, and with what.
    pub(crate) mended: (&'static str, &'static str),
}

const fn case(
    code: &'static str,
    severity: Severity,
    at: (usize, usize),
    file: &'static str,
    mended: (&'static str, &'static str),
) -> Case {
    Case { code, severity, at, file, mended }
}

/// All of them.
pub(crate) fn cases() -> impl Iterator<Item = &'static Case> {
    let first = identity::IDENTITY.iter().chain(&cost::COST).chain(&security::SECURITY);
    first.chain(&reachability::REACH).chain(&amounts::LIMITS).chain(&anonymous::STRANGERS)
}
