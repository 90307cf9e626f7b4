//! Tests that need programs or time beyond `make test`; `make prove` runs them.

mod exports_example;
mod kubernetes;
mod public_api;
