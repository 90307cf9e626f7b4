//! `make ledger-crashes`: kills processes of the ledger in hundreds of rounds, prints the results, and writes `docs/ledger-crashes.md`.
//! With `--seed N`, `--rounds N`, `--fleet` or `--single` it runs only these, and writes nothing.

use std::path::PathBuf;

use conformance::ledger_crashes::{Deployment, RunOptions, figures, promises, run};
use conformance::page_date::page_date;
use tokio::task::JoinSet;

const COMMAND: &str = "make ledger-crashes";
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/ledger-crashes.md");

/// The seeds of the page, each of which has its own processes, and the rounds of each.
const SEEDS: [u64; 4] = [1, 2, 3, 4];
const ROUNDS: u32 = 40;

/// Calls in a round, about.
const CALLS: u64 = 300;

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let flag = |name: &str| arguments.iter().any(|argument| argument == name);
    let number = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        Some(arguments.get(at + 1)?.parse::<u64>().unwrap_or_else(|error| panic!("{name}: {error}")))
    };
    let seeds = number("--seed").map_or(SEEDS.to_vec(), |seed| vec![seed]);
    let rounds = number("--rounds").map_or(ROUNDS, |rounds| u32::try_from(rounds).expect("a number of rounds"));
    let deployments = match (flag("--fleet"), flag("--single")) {
        (true, false) => vec![Deployment::Fleet],
        (false, true) => vec![Deployment::Single],
        _ => Deployment::ALL.to_vec(),
    };
    let mut outcomes = Vec::new();
    for &seed in &seeds {
        let mut runs = JoinSet::new();
        for &deployment in &deployments {
            runs.spawn(run(RunOptions {
                deployment,
                seed,
                rounds,
                calls: CALLS,
                // Reservations of every second run end by themselves.
                reservation_ttl: if seed % 2 == 0 { 2 } else { 3_600 },
                program: program(),
            }));
        }
        outcomes.extend(runs.join_all().await.into_iter().flatten());
    }
    let page = figures(&outcomes, &seeds, COMMAND, &format!("Measured on {}", page_date()));
    println!("{page}");
    if arguments.is_empty() {
        std::fs::write(PAGE, promises() + &page).expect("a page that can be written");
    }
}

/// The server that was built beside this program.
fn program() -> PathBuf {
    let own = std::env::current_exe().expect("the path of this program");
    let directory = own.parent().and_then(|examples| examples.parent()).expect("a directory of Cargo");
    let program = directory.join("tidegate-under-test");
    assert!(program.exists(), "{} is missing: `{COMMAND}` builds it", program.display());
    program
}
