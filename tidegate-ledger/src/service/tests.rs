//! Tests of `LedgerService` on a memory store and a real SQLite ledger.

mod confirming;
mod fixture;
mod journaling;
mod older_copies;
mod opening;
mod reconciling;
mod repairing;
