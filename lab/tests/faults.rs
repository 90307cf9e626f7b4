//! Runs the fault suite and asserts its promises. The suite is in the library, since `make faults` runs it too.

mod page;
mod repeated_outage;
mod replays;
mod suite;
