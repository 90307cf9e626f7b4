//! The proxies beside nginx; `make prove` runs them.

mod caddy;
mod envoy;
mod haproxy;
mod traefik;
mod verifiers;
