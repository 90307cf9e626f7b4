//! Compiling failure policies: words, routes that can fit, and at most one cap.

use tidegate::{Limit, OnFailure};

use super::Compiler;
use crate::failure_policy::FailurePolicy;
use crate::quantity;
use crate::read::Spanned;
use crate::schema_types::{self, PolicyName, PolicyTableSpec, StaticCapSpec};

/// What a rule does while the store fails.
#[derive(Debug, Default)]
pub(super) struct CompiledPolicy {
    pub(super) policy: FailurePolicy,
    /// What one instance lets pass where the policy is `static`.
    pub(super) cap: Option<Limit>,
}

impl Compiler<'_> {
    pub(super) fn on_failure(&mut self, written: &schema_types::OnFailureSpec) -> Option<CompiledPolicy> {
        let mut cap = None;
        let policy = match written {
            schema_types::OnFailureSpec::Text(word) => FailurePolicy::always(self.policy_word(word)?),
            schema_types::OnFailureSpec::Map(PolicyTableSpec::Cap(written)) => {
                FailurePolicy::always(self.cap(written, &mut cap)?)
            }
            schema_types::OnFailureSpec::Map(PolicyTableSpec::Routes(table)) => {
                let routes = self.by_route(&table.routes, |compiler, written| compiler.policy(written, &mut cap));
                let default = table.default.as_ref();
                let otherwise = default.map_or(Some(OnFailure::default()), |written| self.policy(written, &mut cap));
                FailurePolicy { routes: routes?, otherwise: otherwise? }
            }
        };
        Some(CompiledPolicy { policy, cap })
    }

    fn policy(&mut self, written: &schema_types::PolicySpec, cap: &mut Option<Limit>) -> Option<OnFailure> {
        match written {
            schema_types::PolicySpec::Text(word) => self.policy_word(word),
            schema_types::PolicySpec::Map(written) => self.cap(written, cap),
        }
    }

    fn policy_word(&mut self, at: &Spanned<PolicyName>) -> Option<OnFailure> {
        match at.value {
            PolicyName::Open => Some(OnFailure::Open),
            PolicyName::Closed => Some(OnFailure::Closed),
            PolicyName::Local => Some(OnFailure::Local),
            PolicyName::Degraded => Some(OnFailure::Degraded),
            PolicyName::Static => {
                let message = "`static` does not say how much passes while the store fails";
                let help = "write what one instance lets pass, of everybody together: `{ static: 100/s }`";
                self.error("on-failure", &at.span, message).set_help(help);
                None
            }
        }
    }

    /// A cap; `known` is the one that the rule has already.
    fn cap(&mut self, written: &StaticCapSpec, known: &mut Option<Limit>) -> Option<OnFailure> {
        let at = &written.r#static;
        let (capacity, refill) = match quantity::parse_cap(at) {
            Ok(cap) => cap,
            Err(why) => {
                self.error("rate", &at.span, why);
                return None;
            }
        };
        let limit = self.constructed(Limit::token_bucket(capacity, refill), &at.span)?;
        if known.is_some_and(|known| known != limit) {
            let message = "this is another cap than before; the cap of a rule is one bucket, so there is only one";
            let help = "give all routes of the rule the same, or make a rule of those that differ";
            self.error("on-failure", &at.span, message).set_help(help);
            return None;
        }
        *known = Some(limit);
        Some(OnFailure::Static)
    }
}
