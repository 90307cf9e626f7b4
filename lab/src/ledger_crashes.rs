//! The crash suite of the ledger: kills servers, Redis and PostgreSQL at random moments under load, and checks that everything that was
//! acknowledged is in the ledger once.
//!
//! ```text
//! seed ──▶ strikes ──┐
//!                    ├──▶ round: load, kill, restart ──▶ inspection: gate = ledger = notes of the clients
//! seed ──▶ clients ──┘
//! ```

mod call;
mod client;
mod environment;
mod inspection;
mod instance;
mod ledger_rows;
mod load;
mod page;
mod promises;
mod rules;
mod run;
mod scenario;
mod strike;

pub use crate::page::FIGURES;
pub use page::{figures, promises};
pub use rules::{Account, Quota};
pub use run::{RoundOutcome, RunOptions, run};
pub use scenario::Scenario;
pub use strike::{Deployment, Victim};
