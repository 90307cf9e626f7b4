//! Compiling failure policies: names, routes, and at most one static limit for each rule.

use tidegate::{Limit, OnFailure};

use super::Compiler;
use crate::failure_policy::FailurePolicy;
use crate::quantity;
use crate::read::Spanned;
use crate::schema_types::{self, PolicyName, PolicyTableSpec, StaticLimitSpec};

/// The failure policy of a rule, with its static limit.
#[derive(Debug)]
pub(super) struct CompiledPolicy {
    pub(super) policy: FailurePolicy,
    /// The limit of one instance where the policy is `static`.
    pub(super) static_limit: Option<Limit>,
}

impl Compiler<'_> {
    /// The failure policy of a rule; `default` is for requests about which the file says nothing.
    pub(super) fn on_failure(
        &mut self,
        spec: Option<&schema_types::OnFailureSpec>,
        default: OnFailure,
    ) -> Option<CompiledPolicy> {
        let Some(spec) = spec else {
            return Some(CompiledPolicy { policy: FailurePolicy::always(default), static_limit: None });
        };
        let mut static_limit = None;
        let policy = match spec {
            schema_types::OnFailureSpec::Text(word) => FailurePolicy::always(self.policy_word(word)?),
            schema_types::OnFailureSpec::Map(PolicyTableSpec::Static(spec)) => {
                FailurePolicy::always(self.static_limit(spec, &mut static_limit)?)
            }
            schema_types::OnFailureSpec::Map(PolicyTableSpec::Routes(table)) => {
                let routes = self.route_table(&table.routes, |compiler, spec| compiler.policy(spec, &mut static_limit));
                if let Some(stray) = &table.stray_static {
                    let message =
                        "`static` caps all requests if it stands alone; beside others it must say which ones it caps";
                    self.error("on-failure", &stray.r#static.span, message)
                        .set_help("write `default: { static: 100/s }`");
                }
                let otherwise = table.default.as_ref();
                let otherwise = otherwise.map_or(Some(default), |spec| self.policy(spec, &mut static_limit));
                FailurePolicy { routes: routes?, otherwise: otherwise? }
            }
        };
        Some(CompiledPolicy { policy, static_limit })
    }

    fn policy(&mut self, spec: &schema_types::PolicySpec, static_limit: &mut Option<Limit>) -> Option<OnFailure> {
        match spec {
            schema_types::PolicySpec::Text(word) => self.policy_word(word),
            schema_types::PolicySpec::Map(spec) => self.static_limit(spec, static_limit),
        }
    }

    fn policy_word(&mut self, at: &Spanned<PolicyName>) -> Option<OnFailure> {
        match at.value {
            PolicyName::Open => Some(OnFailure::Open),
            PolicyName::Closed => Some(OnFailure::Closed),
            PolicyName::Local => Some(OnFailure::Local),
            PolicyName::Share => Some(OnFailure::Share),
            PolicyName::Degraded => Some(OnFailure::Degraded),
            PolicyName::Static => {
                let message = "`static` needs a limit";
                let help = "write the limit of one instance, for all subjects together: `{ static: 100/s }`";
                self.error("on-failure", &at.span, message).set_help(help);
                None
            }
        }
    }

    /// Compiles a static limit; `known` is the one that the rule has already.
    fn static_limit(&mut self, spec: &StaticLimitSpec, known: &mut Option<Limit>) -> Option<OnFailure> {
        let at = &spec.r#static;
        let (capacity, refill) = match quantity::parse_static_limit(at) {
            Ok(parsed) => parsed,
            Err(why) => {
                self.error("rate", &at.span, why);
                return None;
            }
        };
        let limit = self.report_limit_error(Limit::token_bucket(capacity, refill), &at.span)?;
        if known.is_some_and(|known| known != limit) {
            let message = "the rule has another `static` limit already; all of its routes share one";
            let help = "give all routes the same limit, or move the others to another rule";
            self.error("on-failure", &at.span, message).set_help(help);
            return None;
        }
        *known = Some(limit);
        Some(OnFailure::Static)
    }
}
