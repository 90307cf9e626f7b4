//! `AnonymousBounds`: how many anonymous subjects a rule remembers, and for how long.

use std::time::Duration;

/// Bounds for anonymous subjects such as addresses, which are free to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AnonymousBounds {
    /// Number of subjects that a shared store remembers at the same time. Further new ones share overflow buckets.
    pub max_subjects: u64,
    /// Time after which a subject that sends no request is forgotten, even if its limit lasts longer.
    pub forget_after: Option<Duration>,
}

impl AnonymousBounds {
    /// Bounds for this many subjects, each remembered as long as its limit lasts.
    pub const fn new(max_subjects: u64) -> Self {
        Self { max_subjects, forget_after: None }
    }

    /// Forgets a subject that sends no request for this long.
    pub const fn with_forget_after(mut self, forget_after: Duration) -> Self {
        self.forget_after = Some(forget_after);
        self
    }
}

impl Default for AnonymousBounds {
    /// One million subjects, each remembered as long as its limit lasts.
    fn default() -> Self {
        Self::new(1_000_000)
    }
}
