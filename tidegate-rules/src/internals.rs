//! For `tidegate-rule-tools`, which lints and explains what this crate reads; **not part of the API**. Anything here may change in any
//! version. An embedded user needs none of it, and compiles none of the tools.

use std::path::Path;

pub use crate::compile::CompiledRule;
pub use crate::compiled_file::CompiledFile;
pub use crate::condition::{Condition, is_method};
pub use crate::cost::{Cost, CostSource};
pub use crate::file_checks::{
    ExampleRequest, MAX_COMPARISONS, NEVER_APPLIES, NOT_COMPARED, NeverApplies, weight as condition_weight,
};
pub use crate::forwarded::ProxyTrust;
pub use crate::identity::{Identity, IdentitySource, Source};
pub use crate::index::RuleIndices;
pub use crate::path::{PathPattern, Segment};
pub use crate::provenance::{AuthenticatedNames, Provenance, how_to_authenticate};
pub use crate::quantity::{format_duration, format_rate, format_window};
pub use crate::read::{OneOrMany, Spanned, decode, parse};
pub use crate::repeated::RepeatedPolicy;
pub use crate::request_matcher::{RequestMatcher, RuleMatcher, TenantUse};
pub use crate::request_view::RequestView;
pub use crate::route_table::RouteEntry;
pub use crate::source_file::Span;
pub use crate::suggest::nearest;

use crate::rule_file::FindLints;
use crate::{Problem, Report, RuleFile};

/// Loads a file, and finds its lints.
pub fn load_with(path: &Path, find_lints: FindLints) -> Result<RuleFile, Report> {
    RuleFile::load_with(path, find_lints)
}

/// Parses a text, and finds its lints.
pub fn parse_with(name: &str, text: &str, find_lints: FindLints) -> Result<RuleFile, Report> {
    RuleFile::parse_with(name, text, find_lints)
}

/// What compiling made of the file.
pub fn compiled(file: &RuleFile) -> &CompiledFile {
    &file.compiled
}

/// The line of a position, from 1.
pub fn line(file: &RuleFile, span: &Span) -> usize {
    file.report().source().position(span.start).0
}

/// A report of the file with these problems.
pub fn report_of(file: &RuleFile, problems: Vec<Problem>) -> Report {
    Report::new(file.report().source(), problems)
}
