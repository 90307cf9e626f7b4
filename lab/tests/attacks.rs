//! Runs the attack suite and asserts its bounds. The suite is in the library, since `make attacks` runs it too.

mod busy_machine;
mod hold_list;
mod page;
mod suite;
