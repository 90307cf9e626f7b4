//! `PartitionBy`: what decides the partition of a rule's keys.

/// What decides the partition of a rule's keys, and so their slot in a cluster. Checks of one request whose keys are in one slot are
/// decided in one step.
///
/// The partition of a subject without a tenant comes from the subject, even under a rule that counts by tenant. Otherwise all requests
/// without a tenant would share one slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PartitionBy {
    /// The tenant if the rule counts by tenant, else the subject, else the rule.
    #[default]
    Auto,
    /// The whole subject. This spreads the users of a large tenant over all servers.
    Subject,
    /// The rule: the keys of all its subjects are in one partition.
    Rule,
    /// A name: the keys of all rules with this name are in one partition, and so on one server. Only for rules with little traffic.
    Constant(String),
}
