//! `OverflowRoute`: the second key and the maximum TTL that a check is sent with.

use tidegate::Timestamp;
use tidegate::rules::PartitionBy;
use tidegate::spi::{Adjustment, Check, Gate, Key, MAX_OVERFLOW_BUCKETS, Newcomer, PARTITIONS, Plan};

use crate::args::micros;

/// There is an overflow bucket for each so many subjects of the bound, for each limit and kind of newcomer.
const SUBJECTS_PER_BUCKET: u64 = 4;

/// The bounds of their number, in all partitions together: 64 to 256 in each.
const MIN_BUCKETS: u64 = 64 * PARTITIONS as u64;
const MAX_BUCKETS: u64 = 256 * PARTITIONS as u64;

/// All instances choose the same bucket. Without the secret of the fleet, nobody can compute the hash of a network or a subject.
const BUCKET_SEED: u64 = 0;

/// How the script treats one check of a subject that may be new.
///
/// A slice of routes has one for each check of a plan, or is empty if no check needs one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OverflowRoute<'r> {
    /// The bucket that decides if the subject has no key.
    pub(crate) overflow: Option<Key<'r>>,
    /// The maximum TTL of the subject's key. `None` is unlimited.
    pub(crate) max_ttl_micros: Option<u64>,
}

/// Whether a route has an overflow bucket.
pub(crate) fn has_overflow(routes: &[OverflowRoute<'_>]) -> bool {
    routes.iter().any(|route| route.overflow.is_some())
}

/// `routes` without overflow buckets: while a slot is being migrated, a script with two keys fails if one is new.
pub(crate) fn without_overflow<'r>(routes: &[OverflowRoute<'r>]) -> Vec<OverflowRoute<'r>> {
    empty_if_unneeded(routes.iter().map(|route| OverflowRoute { overflow: None, ..*route }).collect())
}

/// `routes`, or none at all if every check is decided like that of a known subject.
pub(super) fn empty_if_unneeded(routes: Vec<OverflowRoute<'_>>) -> Vec<OverflowRoute<'_>> {
    let is_needed = routes.iter().any(|route| route.overflow.is_some() || route.max_ttl_micros.is_some());
    if is_needed { routes } else { Vec::new() }
}

/// The maximum TTL of keys of anonymous subjects under `gate`.
pub(super) fn max_ttl_micros(gate: &Gate) -> Option<u64> {
    gate.forget_after().map(micros)
}

/// The overflow bucket of the check at `index`. The buckets of one plan differ, since no two checks may share a state.
pub(super) fn overflow_key<'r>(plan: &Plan<'r>, index: usize, now: Timestamp) -> Key<'r> {
    let key = plan.checks()[index].key();
    let may_collide = |check: &&Check<'r>| {
        let other = check.key();
        other.stem().id() == key.stem().id() && other.partition() == key.partition()
    };
    let mut used: Vec<u32> = Vec::new();
    let mut next_free = |check: &Check<'r>| {
        let mut number =
            Newcomer::in_plan(plan, check).bucket(buckets(check.gate(), check.is_anonymous()), BUCKET_SEED, now);
        // A plan has few checks, so this ends.
        while used.contains(&number) {
            number += 1;
        }
        used.push(number);
        number
    };
    for check in plan.checks()[..index].iter().filter(may_collide) {
        next_free(check);
    }
    key.overflow(next_free(&plan.checks()[index]))
}

/// The overflow bucket of a charge.
pub(super) fn overflow_key_of_charge<'r>(charge: &Adjustment<'r>, now: Timestamp) -> Key<'r> {
    let buckets = buckets(charge.gate, charge.anonymous);
    charge.key.overflow(Newcomer::from_adjustment(charge).bucket(buckets, BUCKET_SEED, now))
}

/// The number of overflow buckets in each partition.
fn buckets(gate: &Gate, anonymous: bool) -> u32 {
    if matches!(gate.rule().partition_by, PartitionBy::Rule | PartitionBy::Constant(_)) {
        return MAX_OVERFLOW_BUCKETS;
    }
    let buckets = (gate.max_subjects(anonymous) / SUBJECTS_PER_BUCKET).clamp(MIN_BUCKETS, MAX_BUCKETS);
    (buckets / u64::from(PARTITIONS)) as u32
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use super::*;
    use tidegate::rules::AnonymousBounds;
    use tidegate::spi::{Network, Subject};
    use tidegate::{Limit, Rule};

    const NOW: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

    fn gate() -> Gate {
        gate_with(|rule| rule)
    }

    fn gate_with(settings: impl Fn(Rule) -> Rule) -> Gate {
        let limit = Limit::sliding_log(20, Duration::from_secs(600)).unwrap();
        Gate::new(settings(Rule::new("login-ip", limit).with_per(["ip"])), "", limit)
    }

    fn name_of(check: Check<'_>) -> Vec<u8> {
        let mut name = Vec::new();
        overflow_key(&Plan::new([check]).unwrap(), 0, NOW).write_name("", &mut name);
        name
    }

    /// A subject in partition `number` modulo their number.
    fn subject(number: u128) -> Subject {
        Subject::from_hash(number << 96 | number)
    }

    #[test]
    fn a_network_has_at_most_one_bucket_in_each_partition() {
        let gate = gate();
        let names = (0..10_000).map(|number| {
            let check = Check::new(&gate, subject(number), 1).with_anonymous(true);
            name_of(check.with_network(Some(Network::from_hash(9))))
        });
        assert_eq!(names.collect::<HashSet<_>>().len(), usize::from(PARTITIONS));
    }

    #[test]
    fn the_networks_of_one_partition_share_64_to_256_buckets() {
        for (max_subjects, buckets) in [(1, 64), (500_000, 122), (1_000_000, 244), (u64::MAX, 256)] {
            let gate = gate_with(|rule| rule.with_anonymous(AnonymousBounds::new(max_subjects)));
            let names = (0..10_000).map(|hash| {
                let check = Check::new(&gate, subject(7), 1).with_anonymous(true);
                name_of(check.with_network(Some(Network::from_hash(hash))))
            });
            assert_eq!(names.collect::<HashSet<_>>().len(), buckets);
        }
    }

    #[test]
    fn a_limit_in_one_partition_has_more_buckets_there() {
        let count = |gate: &Gate| {
            // They differ in bits that do not choose the partition.
            let names = (0..10_000).map(|number| name_of(Check::new(gate, Subject::from_hash(number), 1)));
            names.collect::<HashSet<_>>().len()
        };
        assert_eq!(count(&gate()), 256);
        assert!(count(&gate_with(|rule| rule.with_partition_by(PartitionBy::Rule))) > 9_000);
    }
}
