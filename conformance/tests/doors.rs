//! Real proxies in front of a backend, with the configurations of `deploy/` unchanged except for addresses.
//!
//! ```text
//! client ──▶ nginx │ HAProxy │ Traefik │ Caddy │ Envoy ──▶ a backend that echoes requests
//!                              └──▶ tidegate serve ──▶ redis-server
//! ```
//!
//! Each test client has its own address in 127.0.0.0/8. Some tests call `tidegate serve` directly.

mod assertions;
mod backend;
mod check_api;
mod client;
mod namespaces;
mod nginx;
mod prove;
mod rate_limit_service;
mod setup;
mod subjects;
mod verifiers;
