//! Lints: what can be used, and is probably a mistake.

use crate::compile::Ready;
use crate::problem::Problem;

/// Looks for the classic mistakes.
pub(crate) fn lint(ready: &Ready, problems: &mut Vec<Problem>) {
    let _ = (ready, problems);
}
