//! Shared by the benchmarks: options, interleaving, drivers, CPU and memory measurement, and tables.

#![allow(dead_code, unused_imports, reason = "each benchmark uses a part of it")]

mod options;
pub(crate) use options::{Options, report};
mod closed_loop;
pub(crate) mod cpu;
pub(crate) use closed_loop::{CallBench, CallCost, Contender, Instance, best_of, run_callers};
mod random;
pub(crate) use random::Random;
mod store_driver;
pub(crate) use store_driver::{BATCH_SIZE, StoreDriver, patient_options, send, subjects};
mod memory_server;
pub(crate) use memory_server::{KeySize, MemoryServer, START};
mod bench_server;
pub(crate) use bench_server::BenchServer;
pub(crate) use lab::table::{Cell, Table};
