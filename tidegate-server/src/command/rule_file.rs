//! Reading the rule file that a flag names.

use std::io::Read;
use std::path::Path;

use tidegate_rule_tools::{load_and_lint, parse_and_lint};
use tidegate_rules::{Report, RuleFile};

use super::failure::Failure;

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
