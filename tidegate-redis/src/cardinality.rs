//! Bounds the number of keys: of anonymous subjects, which anyone can create for free, and of
//! authenticated ones, whose bound is larger.
//!
//! Each instance counts, for each limit and kind of subject, the keys that its decisions created, from their creation to their
//! expiry by the server's clock. When a decision extends the life of a key, the extension counts for the instance that made it. So
//! the counts of all instances add up to the number of keys.
//!
//! While an instance counts its share of the bound or more, the limit *overflows*: checks are then sent with the key of an
//! overflow bucket in the same partition, and the script uses it if the subject has no key of its own. So known subjects keep
//! their states, and [newcomers](tidegate::spi::Newcomer) share 64 to 256 buckets in each of the 1,024 partitions, or 65,536 if all
//! subjects of the limit are in one partition. A network has at most one bucket in each partition.

mod expiry_ring;
mod overflow_route;
mod subject_stats;
mod tracker;

pub(crate) use overflow_route::{OverflowRoute, has_overflow, without_overflow};
pub use subject_stats::SubjectStats;
pub(crate) use tracker::{CardinalityTracker, PossibleNewKey};
