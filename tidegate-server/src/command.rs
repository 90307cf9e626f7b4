//! What the commands of the binary `tidegate` share, and `tidegate serve` itself.

pub(crate) mod duration_text;
pub(crate) mod exit;
pub(crate) mod failure;
pub(crate) mod output;

pub use self::duration_text::{format_duration, whole_millis};
pub use self::exit::Exit;
pub use self::failure::Failure;
pub use self::output::{ColorChoice, Output, Style, count};
pub use crate::admin::read_token;
pub use crate::args::deployment::{NamespaceArgs, SecretArgs};
pub use crate::args::serve_args::ServeArgs;
pub use crate::lifecycle::reload::stopped as stop_signal;
pub use crate::observe::log::status_log::MAX_RULE_DIFFERENCE;
pub use crate::serve::run as serve;

use std::io::Read;
use std::path::Path;

use tidegate::Timer;
use tidegate_rule_tools::{load_and_lint, parse_and_lint};
use tidegate_rules::{Report, RuleFile};

/// Bytes read from standard input: more than a rule file may have, so that a longer one is refused as too large.
const MAX_STDIN_BYTES: u64 = 17 * 1024 * 1024;

/// Reads a rule file; `-` is the standard input. The inner error is the report of a file that cannot be used.
pub fn load_rule_file(path: &Path) -> Result<Result<RuleFile, Report>, Failure> {
    if path != Path::new("-") {
        return Ok(load_and_lint(path));
    }
    let mut text = String::new();
    let read = std::io::stdin().lock().take(MAX_STDIN_BYTES).read_to_string(&mut text);
    read.map_err(|error| Failure::usage(format!("cannot read standard input: {error}")))?;
    Ok(parse_and_lint("standard input", &text))
}

/// Time as the tokio runtime measures it. Sleeping needs a runtime.
#[allow(clippy::disallowed_methods, reason = "this is the one place that makes a `Timer` of it")]
pub fn tokio_timer() -> impl Timer {
    tidegate::SleepTimer::new(tokio::time::sleep)
}
