//! `Matcher`: finds the rules that apply to a request, with the values to count by and the cost. The
//! [`RuleSet`](crate::RuleSet) adds keys, budgets and hashing.

use std::any::Any;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use crate::{OnFailure, Request, RequestProblem};

/// Finds the rules that apply to a request where the action alone does not decide, such as by path or host.
pub trait Matcher: fmt::Debug + Send + Sync {
    /// Calls `found` with each rule that applies to `request`, in the order of the rules. A rule that applies to several subjects at
    /// once is found once for each. The path of the request is one of its [readings](crate::attributes::PathReadings), in the normal
    /// form of patterns. All readings of a request have the same `memo`. An error means that the request cannot be judged, whatever was
    /// found before.
    fn find(
        &self,
        request: &Request<'_>,
        memo: &RequestMemo,
        found: &mut dyn FnMut(Match<'_>),
    ) -> Result<BodyUse, RequestProblem>;

    /// The names of the attributes that it reads. A front end must set these.
    fn reads(&self) -> Vec<String>;
}

/// A shared matcher.
impl<M: Matcher> Matcher for Arc<M> {
    fn find(
        &self,
        request: &Request<'_>,
        memo: &RequestMemo,
        found: &mut dyn FnMut(Match<'_>),
    ) -> Result<BodyUse, RequestProblem> {
        M::find(self, request, memo, found)
    }

    fn reads(&self) -> Vec<String> {
        M::reads(self)
    }
}

/// A value that a [`Matcher`] computes at most once for all readings of a request, such as the fields of its body.
#[derive(Debug, Default)]
pub struct RequestMemo(OnceLock<Box<dyn Any + Send + Sync>>);

impl RequestMemo {
    /// Nothing is computed yet.
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// The value, which `compute` returns if there is none. `None` if there is one of another type.
    pub fn get_or_compute<T: Any + Send + Sync>(&self, compute: impl FnOnce() -> T) -> Option<&T> {
        self.0.get_or_init(|| Box::new(compute())).downcast_ref()
    }
}

/// A rule that applies to a request.
#[derive(Clone, Copy, Debug)]
pub struct Match<'m> {
    /// The index of the rule in the set, without disabled rules.
    pub rule: usize,
    /// The plan that applies; the limits of the rule itself if it has no plan of this name.
    pub plan: &'m str,
    /// The values to count by, in their [normal forms](crate::attributes::NormalForms): one for each name in the rule's `per`.
    pub values: &'m [Option<&'m str>],
    /// The cost of the request.
    pub cost: u64,
    /// What happens while the store fails; `None` for what the rule says.
    pub on_failure: Option<OnFailure>,
    /// Whether the subject is anonymous.
    pub anonymous: bool,
    /// The address that the subject is or contains, or the first one of its network. It is hashed like the subject.
    pub address: Option<IpAddr>,
}

/// How the result for a request depends on parts of its body that the request does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BodyUse {
    /// Which rules read the [text](crate::attributes::BODY) of the body.
    pub text: BodyNeed,
    /// Which rules read the [size](crate::attributes::SIZE) of the body.
    pub size: BodyNeed,
    /// The size that costs assume in its place. They hold for bodies of at most this many bytes.
    pub assumed_size: Option<u64>,
}

/// Which rules read a part of the body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum BodyNeed {
    /// No rule that applies.
    #[default]
    None,
    /// Only shadow rules. The request must not be refused for its body.
    Shadow,
    /// A rule that is enforced.
    Enforced,
}

impl BodyUse {
    /// How the results of both depend on the body.
    pub fn unite(self, other: Self) -> Self {
        let assumed_size = match (self.assumed_size, other.assumed_size) {
            (Some(one), Some(two)) => Some(one.min(two)),
            (one, two) => one.or(two),
        };
        Self { text: self.text.max(other.text), size: self.size.max(other.size), assumed_size }
    }
}
