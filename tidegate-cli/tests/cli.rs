//! The binary as users and scripts call it: output, exit codes, and bad input.

mod bad_input;
mod check;
mod config;
mod docs_pages;
mod explain;
mod manual;
mod settings;
mod shell;
mod test_files;
mod validate;
