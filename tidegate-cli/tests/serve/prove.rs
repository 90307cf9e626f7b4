//! Checks by other programs; `make prove` runs them.

mod openapi;
mod promtool;
