//! The lint `strangers-remembered`: anonymous subjects with a long window. They are free to create, and each takes
//! memory in the store for as long as its limit remembers it.

use std::time::Duration;

use tidegate_rules::Problem;
use tidegate_rules::internals::{CompiledFile, CompiledRule, format_duration};

use super::limits;

/// The longest window of anonymous subjects without a lint.
const MAX_SILENT_RETENTION: Duration = Duration::from_secs(60 * 60);

/// Reports a long window, unless the rule has `forget_after`.
pub(super) fn lint(file: &CompiledFile, rule: &CompiledRule) -> Option<Problem> {
    let has_forget_after = rule.anonymous.is_some_and(|anonymous| anonymous.forget_after.is_some());
    let longest = limits::all(rule).map(|(_, limit)| limit.max_window()).max()?;
    if has_forget_after || longest <= MAX_SILENT_RETENTION || !file.counts_anonymous(rule) {
        return None;
    }
    let shown = format_duration(longest);
    let message = format!("this rule counts unauthenticated subjects, and remembers each for up to {shown}");
    let help = "a flood of new addresses fills the store: set when an idle one is forgotten, such as \
                `anonymous: { forget_after: 10m }`, or set the whole window if that is intended";
    Some(Problem::warning("strangers-remembered", message, rule.per_span.clone()).with_help(help))
}
