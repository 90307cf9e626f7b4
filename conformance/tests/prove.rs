//! Tests that need programs or time beyond `make test`; `make prove` runs them.

mod canonical;
mod exports_example;
mod kubernetes;
mod public_api;
mod upstream_handlers;
