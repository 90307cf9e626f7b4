//! Every test that crosses a crate, on real servers. The modules `prove` need more programs or more time: `make prove` runs them.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod acquire;
mod anonymous_flood;
mod atomicity;
mod bad_batches;
mod bad_input;
mod bad_server;
mod batches;
mod busy_runtime;
mod changed_limits;
mod cli;
mod cluster;
mod cluster_queues;
mod corrections;
mod denial_cache;
mod differential;
mod doors;
mod envoy;
mod fallback_model;
mod gateway;
mod golden;
mod hang_ups;
mod heartbeats;
mod leases;
mod ledger_database;
mod ledger_failover;
mod newcomers;
mod outbox;
mod partial_outage;
mod penalties;
mod plans;
mod prove;
mod refund_histories;
mod refunds;
mod rule_files;
mod runtime_shutdown;
mod sentinels;
mod silent_servers;
mod startup_checks;
mod tower;
mod traps_buckets;
mod traps_redis;
mod traps_redis_faults;
mod traps_windows;
