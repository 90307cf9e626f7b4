//! Tests of `LedgerService` on a memory store and a real SQLite ledger.

mod confirming;
mod fixture;
mod journaling;
mod opening;
mod reconciling;
mod restoring;
mod rollbacks;
