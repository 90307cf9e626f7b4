//! `OnFailure` and `OnOverload`: what happens to a request that the store does not decide.

use crate::store::{StoreError, StoreErrorKind};

/// What happens to a request while the store fails. It never applies to a denial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFailure {
    /// This instance decides alone, in memory, with the whole limit.
    #[default]
    Local,
    /// This instance decides alone, in memory, with its [share](crate::Limit::share) of the limit.
    Share,
    /// The request passes, however many there are.
    Open,
    /// The request is refused as a failure of the service (503).
    Closed,
    /// The request passes while this instance is within the [static limit](crate::Rule::with_static_limit) of the rule, which
    /// counts all subjects together.
    Static,
    /// The request passes, and the application learns that the decision is degraded.
    Degraded,
}

/// What happens to a request while this instance is overloaded: the store answers, but too many plans wait for it. A subject that
/// has other requests waiting is refused (503), unless its rules are [open](Self::Open).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnOverload {
    /// The request is decided by [`OnFailure`], with the whole limit in memory in place of [`OnFailure::Open`] and
    /// [`OnFailure::Degraded`].
    #[default]
    Policy,
    /// This instance decides alone, in memory, with the whole limit, whatever [`OnFailure`] is.
    Local,
    /// The request passes, however many there are.
    Open,
}

impl OnFailure {
    /// The name in rule files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Share => "share",
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Degraded => "degraded",
            Self::Static => "static",
        }
    }

    /// The stricter of two policies.
    pub(crate) const fn stricter(self, other: Self) -> Self {
        if self.strictness() < other.strictness() { other } else { self }
    }

    const fn strictness(self) -> u8 {
        match self {
            Self::Open => 0,
            Self::Degraded => 1,
            // It counts all subjects together, so one of them may use all of it.
            Self::Static => 2,
            Self::Local => 3,
            Self::Share => 4,
            Self::Closed => 5,
        }
    }

    /// Whether all requests pass while the store fails.
    pub const fn lets_pass(self) -> bool {
        matches!(self, Self::Open | Self::Degraded)
    }

    /// The policy that applies after the store failed with `error`.
    pub(crate) const fn after(self, error: &StoreError, on_overload: OnOverload) -> Self {
        if !matches!(error.kind(), StoreErrorKind::Overloaded) {
            return self;
        }
        match (on_overload, self) {
            (OnOverload::Open, _) => Self::Open,
            (OnOverload::Policy | OnOverload::Local, _) if error.is_crowded() => Self::Closed,
            (OnOverload::Local, _) | (OnOverload::Policy, Self::Open | Self::Degraded) => Self::Local,
            (OnOverload::Policy, policy) => policy,
        }
    }
}

impl OnOverload {
    /// The name in rule files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Local => "local",
            Self::Open => "open",
        }
    }

    /// The stricter of two.
    pub(crate) const fn stricter(self, other: Self) -> Self {
        match (self, other) {
            (Self::Policy, _) | (_, Self::Policy) => Self::Policy,
            (Self::Local, _) | (_, Self::Local) => Self::Local,
            (Self::Open, Self::Open) => Self::Open,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stricter_of_two_policies_does_not_depend_on_their_order() {
        let by_strictness = [
            OnFailure::Open,
            OnFailure::Degraded,
            OnFailure::Static,
            OnFailure::Local,
            OnFailure::Share,
            OnFailure::Closed,
        ];
        for (index, stricter) in by_strictness.into_iter().enumerate() {
            for other in &by_strictness[..=index] {
                assert_eq!((stricter.stricter(*other), other.stricter(stricter)), (stricter, stricter));
            }
        }
        let by_strictness = [OnOverload::Open, OnOverload::Local, OnOverload::Policy];
        for (index, stricter) in by_strictness.into_iter().enumerate() {
            for other in &by_strictness[..=index] {
                assert_eq!((stricter.stricter(*other), other.stricter(stricter)), (stricter, stricter));
            }
        }
    }

    #[test]
    fn names_are_those_of_rule_files() {
        let names = [OnOverload::Policy, OnOverload::Local, OnOverload::Open].map(OnOverload::as_str);
        assert_eq!(names, ["policy", "local", "open"]);
    }
}
