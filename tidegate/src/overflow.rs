//! `Newcomer`: a subject without a state of its own, while its limit has as many subjects as it may. An overflow bucket decides for
//! it, which it shares with other newcomers.
//!
//! A newcomer with an address shares its bucket by [`Network`], so that a flood from one network uses up the buckets of that
//! network. A newcomer without an address shares it by a hash that changes with time, so that no two subjects share a bucket for
//! long. A reservation with an idempotency key always has the same bucket: repeated in another one, it would be a second reservation. Each
//! bucket has the limit of one subject.
//!
//! Authenticated and anonymous newcomers, with and without an address, have separate buckets: a flood of one kind does not
//! use up those of another.

use std::time::Duration;

use siphasher::sip::SipHasher24;

use crate::plan::{Check, Gate, Plan, ReservationTerms};
use crate::spi::Subject;
use crate::store::Adjustment;
use crate::{Network, Timestamp};

/// The largest number of overflow buckets that a store may have in one partition, for each kind of newcomer.
pub const MAX_OVERFLOW_BUCKETS: u32 = 1 << 16;

/// The shortest and the longest time after which newcomers without an address share their buckets with others. Between these, it is
/// the window of the limit.
const MIN_ROTATION: Duration = Duration::from_secs(1);
const MAX_ROTATION: Duration = Duration::from_secs(3600);

/// A subject without a state of its own, while its limit has as many subjects as it may.
#[derive(Clone, Copy, Debug)]
pub struct Newcomer {
    subject: Subject,
    network: Option<Network>,
    anonymous: bool,
    /// After which time it has another bucket; `None` if it keeps its bucket.
    rotation: Option<Duration>,
}

impl Newcomer {
    /// The subject of a check of `plan`. It keeps its bucket if the plan can be repeated and must find what it has reserved.
    pub fn in_plan(plan: &Plan<'_>, check: &Check<'_>) -> Self {
        let is_keyed = plan.reservation().is_some_and(ReservationTerms::is_keyed);
        let newcomer = Self::from_check(check);
        Self { rotation: newcomer.rotation.filter(|_| !is_keyed), ..newcomer }
    }

    /// The subject of a check.
    pub fn from_check(check: &Check<'_>) -> Self {
        Self::new(check.gate(), check.key().subject(), check.network(), check.is_anonymous())
    }

    /// The subject of a charge.
    pub fn from_adjustment(adjustment: &Adjustment<'_>) -> Self {
        let Adjustment { key, gate, network, anonymous, .. } = adjustment;
        Self::new(gate, key.subject(), *network, *anonymous)
    }

    fn new(gate: &Gate, subject: Subject, network: Option<Network>, anonymous: bool) -> Self {
        let rotation = Some(gate.limit().max_window().clamp(MIN_ROTATION, MAX_ROTATION));
        Self { subject, network, anonymous, rotation }
    }

    /// The number of its overflow bucket. Each kind of newcomer has `buckets` of them, at most [`MAX_OVERFLOW_BUCKETS`]. Those who
    /// do not know `seed` cannot choose a bucket.
    pub fn bucket(&self, buckets: u32, seed: u64, now: Timestamp) -> u32 {
        let kind = 2 * u32::from(!self.anonymous) + u32::from(self.network.is_some());
        let hasher = SipHasher24::new_with_keys(seed, u64::from(kind));
        let hash = if let Some(network) = self.network {
            hasher.hash(&network.hash().to_le_bytes())
        } else {
            let epoch_at =
                |rotation: Duration| now.as_micros() / u64::try_from(rotation.as_micros()).unwrap_or(u64::MAX);
            let epoch = self.rotation.map_or(0, epoch_at);
            let mut bytes = [0; 24];
            bytes[..16].copy_from_slice(&self.subject.hash().to_le_bytes());
            bytes[16..].copy_from_slice(&epoch.to_le_bytes());
            hasher.hash(&bytes)
        };
        // Scaled to the number of buckets.
        let bucket = (u128::from(hash) * u128::from(buckets.clamp(1, MAX_OVERFLOW_BUCKETS))) >> 64;
        kind * MAX_OVERFLOW_BUCKETS + bucket as u32
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::Limit;
    use crate::plan::LeaseOwner;

    const WINDOW: Duration = Duration::from_secs(600);
    const NOON: Timestamp = Timestamp::from_micros(1_790_000_400_000_000);

    fn gate(window: Duration) -> Gate {
        Gate::for_rule("login", Limit::sliding_log(20, window).unwrap())
    }

    fn bucket(check: Check<'_>, now: Timestamp) -> u32 {
        Newcomer::from_check(&check).bucket(256, 7, now)
    }

    #[test]
    fn newcomers_of_one_network_share_a_bucket_at_all_times() {
        let gate = gate(WINDOW);
        let check = |subject| Check::new(&gate, Subject::from_hash(subject), 1).with_anonymous(true);
        let in_network = |subject| check(subject).with_network(Some(Network::from_hash(9)));
        assert_eq!(bucket(in_network(1), NOON), bucket(in_network(2), NOON.plus(100 * WINDOW)));
        let networks = (1..1000).map(|hash| bucket(check(1).with_network(Some(Network::from_hash(hash))), NOON));
        assert!(networks.collect::<HashSet<_>>().len() > 240, "networks are spread over all 256 buckets");
    }

    /// Otherwise a newcomer would share its bucket with the same flood for as long as that lasts.
    #[test]
    fn newcomers_without_an_address_move_to_another_bucket_with_every_window() {
        for (window, rotation) in
            [(WINDOW, WINDOW), (10 * WINDOW, MAX_ROTATION), (Duration::from_millis(1), MIN_ROTATION)]
        {
            let gate = gate(window);
            let at = |rotations: u32| {
                let start = Timestamp::from_micros(0).plus(500_000 * MAX_ROTATION);
                bucket(Check::new(&gate, Subject::from_hash(1), 1), start.plus(rotations * rotation))
            };
            let half = Check::new(&gate, Subject::from_hash(1), 1);
            let start = Timestamp::from_micros(0).plus(500_000 * MAX_ROTATION);
            assert_eq!(bucket(half, start), bucket(half, start.plus(rotation / 2)), "{window:?}");
            let seen: HashSet<u32> = (0..100).map(at).collect();
            assert!(seen.len() > 60, "{window:?}: {}", seen.len());
        }
    }

    #[test]
    fn a_reservation_with_an_idempotency_key_has_the_same_bucket_at_all_times() {
        let gate = gate(WINDOW);
        let buckets = |subject: u128, keyed: bool| -> HashSet<u32> {
            let check = Check::new(&gate, Subject::from_hash(subject), 1);
            let terms = ReservationTerms::new(LeaseOwner::from_number(1).unwrap(), WINDOW, keyed);
            let plan = Plan::new([check]).unwrap().with_reservation(terms);
            (0..100)
                .map(|windows| Newcomer::in_plan(&plan, &check).bucket(256, 7, NOON.plus(windows * WINDOW)))
                .collect()
        };
        assert!((0..100).all(|subject| buckets(subject, true).len() == 1));
        assert!((0..100).flat_map(|subject| buckets(subject, true)).collect::<HashSet<_>>().len() > 60, "spread");
        assert!(buckets(1, false).len() > 60);
    }

    #[test]
    fn each_kind_of_newcomer_has_buckets_of_its_own() {
        let gate = gate(WINDOW);
        let mut kinds: Vec<HashSet<u32>> = Vec::new();
        for (anonymous, network) in [(true, false), (true, true), (false, false), (false, true)] {
            let check = |number: u32| {
                let check = Check::new(&gate, Subject::from_hash(number.into()), 1).with_anonymous(anonymous);
                check.with_network(network.then(|| Network::from_hash(number)))
            };
            kinds.push((0..1000).map(|number| bucket(check(number), NOON)).collect());
        }
        for (index, kind) in kinds.iter().enumerate() {
            assert!(kinds[index + 1..].iter().all(|other| kind.is_disjoint(other)));
            assert!(kind.len() <= 256);
        }
    }

    #[test]
    fn a_bucket_is_below_the_number_of_buckets_and_depends_on_the_seed() {
        let gate = gate(WINDOW);
        let newcomer =
            |subject| Newcomer::from_check(&Check::new(&gate, Subject::from_hash(subject), 1).with_anonymous(true));
        assert!((0..1000).all(|subject| newcomer(subject).bucket(1, 7, NOON) == 0));
        assert!((0..1000).all(|subject| newcomer(subject).bucket(0, 7, NOON) == 0));
        assert!((0..1000).all(|subject| newcomer(subject).bucket(u32::MAX, 7, NOON) < MAX_OVERFLOW_BUCKETS));
        assert!(
            (0..1000).any(|subject| newcomer(subject).bucket(256, 7, NOON) != newcomer(subject).bucket(256, 8, NOON))
        );
    }
}
