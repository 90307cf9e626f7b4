//! `OverflowRoute`: the second key and the maximum TTL that a check of an anonymous subject is sent with.

use crate::args::micros;
use tidegate::spi::{Check, Gate, Key, Plan};

/// How the script treats one check of an anonymous subject.
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
    gate.anonymous().forget_after.map(micros)
}

/// The overflow bucket of the check at `index`. The buckets of one plan differ, since no two checks may share a state.
pub(crate) fn overflow_key<'r>(plan: &Plan<'r>, index: usize) -> Key<'r> {
    let key = plan.checks()[index].key();
    let may_collide = |check: &&Check<'r>| {
        let other = check.key();
        check.is_anonymous() && other.stem().id() == key.stem().id() && other.partition() == key.partition()
    };
    let mut used: Vec<u8> = Vec::new();
    let mut next_free = |key: &Key<'r>| {
        let mut number = bucket_number(key);
        // A plan has far fewer checks than there are numbers, so this ends.
        while used.contains(&number) {
            number = number.wrapping_add(1);
        }
        used.push(number);
        number
    };
    for check in plan.checks()[..index].iter().filter(may_collide) {
        next_free(check.key());
    }
    key.overflow(next_free(key))
}

/// The number of the bucket within the partition. Where the subject chooses the partition, that is by the same bits of its
/// hash, so each partition has one bucket. Where a rule or a tenant chooses it, there are 256.
pub(super) fn bucket_number(key: &Key<'_>) -> u8 {
    (key.subject().hash() >> 96) as u8
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use super::*;
    use tidegate::Limit;
    use tidegate::spi::{PARTITIONS, Subject};

    /// One bucket for each partition is enough where subjects spread over all partitions. Where they share one partition,
    /// it would be one bucket for all.
    #[test]
    fn subjects_of_one_partition_share_256_buckets_unless_they_choose_the_partition() {
        let gate = Gate::for_rule("login-ip", Limit::sliding_log(20, Duration::from_secs(600)).unwrap());
        let subjects = || (0..10_000_u128).map(|number| Subject::from_hash(number << 96 | number));
        let stem = Check::new(&gate, Subject::from_hash(0), 1).key().stem().clone();
        let count_buckets = |partition_by: &dyn Fn(Subject) -> Subject| {
            let names = subjects().map(|subject| {
                let (key, mut name) = (Key::new(&stem, partition_by(subject), subject), Vec::new());
                key.overflow(bucket_number(&key)).write_name("", &mut name);
                name
            });
            names.collect::<HashSet<_>>().len()
        };
        assert_eq!(count_buckets(&|subject| subject), usize::from(PARTITIONS));
        assert_eq!(count_buckets(&|_| Subject::from_hash(7)), 256);
    }
}
