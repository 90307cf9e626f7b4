//! `make faults`: runs every fault under more load than the tests, prints the results, and writes `docs/faults.md`. With the name of
//! a fault, runs only that one and writes nothing; `--valkey` runs on Valkey; `--quick` uses the load of the tests.

use conformance::faults::{FAULTS, Fault, FaultOutcome, LeaseOutcome, Scale, figures, promises, run};
use conformance::page_date::page_date;
use conformance::server::Kind;
use tokio::sync::Semaphore;

const COMMAND: &str = "make faults";
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/faults.md");

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let flag = |name: &str| arguments.iter().any(|argument| argument == name);
    let kind = if flag("--valkey") { Kind::Valkey } else { Kind::Redis };
    let scale = if flag("--quick") { Scale::for_tests() } else { Scale::for_figures() };
    let names: Vec<_> = arguments.iter().filter(|argument| !argument.starts_with("--")).collect();
    let by_name = |name: &&String| {
        let known: Vec<_> = FAULTS.iter().map(|fault| fault.name()).collect();
        Fault::from_name(name).unwrap_or_else(|| panic!("there is no fault {name:?}; there are {known:?}"))
    };
    let chosen: Vec<_> = names.iter().map(by_name).collect();
    let (mut rows, mut leases) = (Vec::new(), Vec::new());
    for fault in if chosen.is_empty() { FAULTS.to_vec() } else { chosen.clone() } {
        eprintln!("{}: {}", fault.name(), fault.injection());
        // In a task, so that all threads of the runtime can run it.
        let ran = tokio::spawn(async move { run(fault, kind, scale, &Semaphore::new(1)).await }).await;
        let (by_policy, holders) = ran.expect("a fault that ends");
        rows.extend(by_policy);
        leases.push(holders);
    }
    let page = figures(&rows, &leases, &scale, COMMAND, &format!("Measured on {}, on {kind:?}", page_date()));
    println!("{page}");
    let problems: Vec<_> =
        rows.iter().flat_map(FaultOutcome::problems).chain(leases.iter().flat_map(LeaseOutcome::problems)).collect();
    assert!(problems.is_empty(), "not every promise is kept:\n{}", problems.join("\n"));
    if arguments.is_empty() {
        std::fs::write(PAGE, promises() + &page).expect("a page that can be written");
    }
}
