//! `Matcher`: finds the rules that apply to a request, with the values to count by and the cost. The
//! [`RuleSet`](crate::RuleSet) adds keys, budgets and hashing.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::{OnFailure, Request, RequestProblem};

/// Finds the rules that apply to a request where the action alone does not decide, such as by path or host.
pub trait Matcher: fmt::Debug + Send + Sync {
    /// Calls `found` with each rule that applies to `request`, in the order of the rules. A rule that applies to several subjects at
    /// once is found once for each. The path of the request is one of its [readings](crate::attributes::PathReadings), in the normal
    /// form of patterns. An error means that the request cannot be judged, whatever was found before.
    fn find(&self, request: &Request<'_>, found: &mut dyn FnMut(Match<'_>)) -> Result<(), RequestProblem>;

    /// The names of the attributes that it reads. A front door must set these.
    fn reads(&self) -> Vec<String>;
}

/// A shared matcher.
impl<M: Matcher> Matcher for Arc<M> {
    fn find(&self, request: &Request<'_>, found: &mut dyn FnMut(Match<'_>)) -> Result<(), RequestProblem> {
        M::find(self, request, found)
    }

    fn reads(&self) -> Vec<String> {
        M::reads(self)
    }
}

/// A rule that applies to a request.
#[derive(Clone, Copy, Debug)]
pub struct Match<'m> {
    /// The index of the rule in the set, without disabled rules.
    pub rule: usize,
    /// The plan that applies; the limits of the rule itself if it has no plan of this name.
    pub plan: &'m str,
    /// The values to count by: one for each name in the rule's `per`.
    pub values: &'m [Option<&'m str>],
    /// The cost of the request.
    pub cost: u64,
    /// What happens while the store fails; `None` for what the rule says.
    pub on_failure: Option<OnFailure>,
    /// Whether the subject is unauthenticated.
    pub anonymous: bool,
    /// The address that the subject is or contains, or the first one of its network. It is hashed like the subject.
    pub address: Option<IpAddr>,
}
