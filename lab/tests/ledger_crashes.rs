//! The crash suite of the ledger in a few rounds, its page, and reproductions of single crashes.

mod page;
mod single_crashes;
mod suite;
