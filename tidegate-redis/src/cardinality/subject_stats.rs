//! `SubjectStats`: the keys of subjects under one rule, for operators.

use crate::store::RedisStore;

/// The keys of subjects under one rule, as counted by this instance.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SubjectStats {
    /// The id of the rule. For rules that share a budget, the one that created the first key.
    pub rule: String,
    /// How many keys this instance has created since it started.
    pub created: u64,
    /// How many live keys this instance counts. Each key is counted by one instance.
    pub keys: u64,
    /// Whether one of the rule's limits has too many keys, so that new subjects share overflow buckets.
    pub overflowing: bool,
}

/// Monitoring subjects
impl RedisStore {
    /// The statistics of each rule that had anonymous subjects lately, by rule id.
    pub fn anonymous_stats(&self) -> Vec<SubjectStats> {
        self.cardinality.stats(true)
    }

    /// The statistics of each rule that had authenticated subjects lately, by rule id.
    pub fn authenticated_stats(&self) -> Vec<SubjectStats> {
        self.cardinality.stats(false)
    }
}
