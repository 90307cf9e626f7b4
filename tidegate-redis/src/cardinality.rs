//! Bounds the number of keys of unauthenticated subjects ("anonymous" for short), which anyone can create for free.
//!
//! Each instance counts, for each limit, the keys that its decisions created for anonymous subjects, from their creation to
//! their expiry by the server's clock. When a decision extends the life of a key, the extension counts for the instance that
//! made it. So the counts of all instances add up to the number of keys.
//!
//! While an instance counts its share of the bound or more, the limit *overflows*: checks of anonymous subjects are then sent
//! with the key of an overflow bucket in the same partition, and the script uses it if the subject has no key of its own. So
//! known subjects keep their states, and new ones share 1,024 buckets, or 256 in each partition that is not chosen by the
//! subject.

mod anonymous_stats;
mod expiry_ring;
mod overflow_route;
mod tracker;

pub use anonymous_stats::AnonymousStats;
pub(crate) use overflow_route::{OverflowRoute, has_overflow, overflow_key, without_overflow};
pub(crate) use tracker::{CardinalityTracker, PossibleNewKey};
