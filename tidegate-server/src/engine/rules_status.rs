//! `RulesStatus`: the rules in force, and the log of their warnings.

use std::sync::Arc;

use tidegate_rules::RuleFile;

/// The rules in force.
#[derive(Clone, Debug)]
pub(crate) struct RulesStatus {
    /// Counts the times that rules were read; the first are version 1.
    pub(crate) version: u64,
    /// Number of rules.
    pub(crate) rules: usize,
    pub(crate) file: Arc<RuleFile>,
}

impl RulesStatus {
    pub(crate) fn new(version: u64, file: RuleFile) -> Self {
        Self { version, rules: file.ids().count(), file: Arc::new(file) }
    }
}

/// Logs the warnings and notes of a file that is used from now on.
pub(crate) fn log_report(file: &RuleFile) {
    if !file.report().problems().is_empty() {
        tracing::warn!(target: "tidegate::server", "{}", file.report());
    }
}
