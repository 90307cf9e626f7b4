//! The log: where it goes, and its lines about refusals and about the status of the server.

pub(crate) mod bound_log;
pub(crate) mod log_writer;
pub(crate) mod logging;
pub(crate) mod refusal_log;
pub(crate) mod status_log;
