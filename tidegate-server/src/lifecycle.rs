//! From the start of the server to its end: the share of file descriptors, the start page, and files that are
//! read again when they change.

pub(crate) mod config_part;
pub(crate) mod descriptors;
mod file_writers;
pub(crate) mod reload;
pub(crate) mod start_page;
mod watched_files;
