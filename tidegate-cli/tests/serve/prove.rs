//! Checks by other programs; `make prove` runs them.

mod model_clients;
mod openapi;
mod promtool;
