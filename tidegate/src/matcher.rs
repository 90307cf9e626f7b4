//! `Matcher`: finds the rules of a request for a [`RuleSet`](crate::RuleSet). It says whom and how much; keys, budgets and
//! hashing are not its business.

use std::fmt;
use std::sync::Arc;

use crate::{OnFailure, Request};

/// Finds the rules that a request must pass, where an action is not enough to tell: by path, by host, by whatever a rule
/// file can say.
pub trait Matcher: fmt::Debug + Send + Sync {
    /// Hands out every rule that `request` must pass, in the order of the rules.
    fn find(&self, request: &Request<'_>, found: &mut dyn FnMut(Match<'_>));

    /// The attributes that it reads: what a door must bring.
    fn reads(&self) -> Vec<String>;
}

/// A matcher that others look at too, such as one that explains itself.
impl<M: Matcher> Matcher for Arc<M> {
    fn find(&self, request: &Request<'_>, found: &mut dyn FnMut(Match<'_>)) {
        M::find(self, request, found);
    }

    fn reads(&self) -> Vec<String> {
        M::reads(self)
    }
}

/// A rule that a request must pass.
#[derive(Clone, Copy, Debug)]
pub struct Match<'m> {
    /// Its place among the rules of the set; those that are disabled have none.
    pub rule: usize,
    /// Which of its plans applies; any other name stands for its own limits.
    pub plan: &'m str,
    /// Whom it counts: a value for each name of its `per`.
    pub values: &'m [Option<&'m str>],
    /// What the request costs.
    pub cost: u64,
    /// What happens to it while the store fails, where that is not what the rule says of all requests.
    pub on_failure: Option<OnFailure>,
    /// Whether nobody vouches for whom it counts.
    pub anonymous: bool,
}
