//! Compiling failure policies: words, routes that can fit, and at most one cap.

use tidegate::{Limit, OnFailure};

use super::Compiler;
use crate::policy::Policy;
use crate::quantity;
use crate::read::At;
use crate::written::{self, Cap, PolicyTable, PolicyWord};

/// What a rule does while the store fails.
#[derive(Debug, Default)]
pub(super) struct Failing {
    pub(super) policy: Policy,
    /// What one instance lets pass where the policy is `static`.
    pub(super) cap: Option<Limit>,
}

impl Compiler<'_> {
    pub(super) fn on_failure(&mut self, written: &written::OnFailure) -> Option<Failing> {
        let mut cap = None;
        let policy = match written {
            written::OnFailure::Text(word) => Policy::always(self.policy_word(word)?),
            written::OnFailure::Map(PolicyTable::Cap(written)) => Policy::always(self.cap(written, &mut cap)?),
            written::OnFailure::Map(PolicyTable::Routes(table)) => {
                let routes = self.by_route(&table.routes, |compiler, written| compiler.policy(written, &mut cap));
                let default = table.default.as_ref();
                let otherwise = default.map_or(Some(OnFailure::default()), |written| self.policy(written, &mut cap));
                Policy { routes: routes?, otherwise: otherwise? }
            }
        };
        Some(Failing { policy, cap })
    }

    fn policy(&mut self, written: &written::Policy, cap: &mut Option<Limit>) -> Option<OnFailure> {
        match written {
            written::Policy::Text(word) => self.policy_word(word),
            written::Policy::Map(written) => self.cap(written, cap),
        }
    }

    fn policy_word(&mut self, at: &At<PolicyWord>) -> Option<OnFailure> {
        match at.value {
            PolicyWord::Open => Some(OnFailure::Open),
            PolicyWord::Closed => Some(OnFailure::Closed),
            PolicyWord::Local => Some(OnFailure::Local),
            PolicyWord::Degraded => Some(OnFailure::Degraded),
            PolicyWord::Static => {
                let message = "`static` does not say how much passes while the store fails";
                let help = "write what one instance lets pass, of everybody together: `{ static: 100/s }`";
                self.error("on-failure", &at.span, message).set_help(help);
                None
            }
        }
    }

    /// A cap; `known` is the one that the rule has already.
    fn cap(&mut self, written: &Cap, known: &mut Option<Limit>) -> Option<OnFailure> {
        let at = &written.r#static;
        let (capacity, refill) = match quantity::cap(at) {
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
