//! Real proxies in front of a service, with the configurations of `deploy/` as they are: what each of them promises.
//!
//! ```text
//! client ──▶ nginx │ HAProxy │ Traefik │ Caddy │ Envoy ──▶ a service that repeats what it was asked
//!                              └──▶ tidegate serve ──▶ redis-server
//! ```
//!
//! Only addresses differ from what `deploy/` says. Clients are told apart by theirs: all of 127.0.0.0/8 is this machine.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod assertions;
mod backend;
mod caddy;
mod check_api;
mod client;
mod envoy;
mod haproxy;
mod nginx;
mod process;
mod setup;
mod traefik;
