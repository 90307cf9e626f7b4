//! The plan of a request that cannot be judged, for rules without a matcher.

use super::RuleSet;
use crate::plan::Plan;
use crate::rule::RuleMode;
use crate::spi::RequestProblemKind;
use crate::{Request, RequestProblem};

impl RuleSet {
    /// The plan of a request with a problem with the value of `name`: a refusal in the last format of the rules that apply.
    #[cold]
    pub(super) fn refuse(&self, request: &Request<'_>, kind: RequestProblemKind, name: &str) -> Plan<'_> {
        let rules = self.matching(request.action()).iter().map(|index| &self.rules[*index as usize].rule);
        let formats = rules.filter(|rule| rule.mode != RuleMode::Shadow).map(|rule| rule.error_format);
        Plan::refused_in(formats.max().flatten(), RequestProblem::new(kind, name))
    }
}
