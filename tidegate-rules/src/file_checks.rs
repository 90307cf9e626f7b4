//! Errors that only a compiled file as a whole shows: it can be read, and must not be used. Probable mistakes that leave a file usable are
//! the lints of `tidegate-rule-tools`.
//!
//! A file with other errors is not checked, because the parts that were removed would cause false ones.

mod check_count;
mod claims;
mod example_request;
mod exemptions;
mod front_ends;
mod ledger;

use crate::compiled_file::CompiledFile;
use crate::problem::Problem;

pub use example_request::{ExampleRequest, weight};
pub use front_ends::{NEVER_APPLIES, NeverApplies};

/// The code of the note that the bound on comparisons was reached. Reported at most once.
pub const NOT_COMPARED: &str = "not-compared";

/// The most comparisons of two values, about one second of work. Rules that share no value are not compared, so only files
/// that would be slow to match reach this bound.
pub const MAX_COMPARISONS: usize = 20_000_000;

/// Appends the problems of a file.
pub(crate) fn check(file: &CompiledFile, problems: &mut Vec<Problem>) {
    claims::check(file, problems);
    exemptions::check(file, problems);
    for rule in file.enabled_rules() {
        front_ends::check(file, rule, problems);
        ledger::check(file, rule, problems);
    }
    check_count::check(file, problems);
}
