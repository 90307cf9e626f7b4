//! `make faults`: runs every fault under more load than the tests, prints the results, and writes `docs/faults.md`. With the name of
//! a fault, runs only that one and writes nothing; `--valkey` runs on Valkey; `--quick` uses the load of the tests.

use conformance::faults::{FAULTS, Fault, FaultOutcome, Scale, figures, promises, run};
use conformance::server::Kind;
use tidegate::{Clock, SystemClock};
use tokio::sync::Semaphore;

const COMMAND: &str = "make faults";
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/faults.md");

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let flag = |name: &str| arguments.iter().any(|argument| argument == name);
    let kind = if flag("--valkey") { Kind::Valkey } else { Kind::Redis };
    let scale = if flag("--quick") { Scale::of_tests() } else { Scale::of_figures() };
    let names: Vec<_> = arguments.iter().filter(|argument| !argument.starts_with("--")).collect();
    let by_name = |name: &&String| {
        let known: Vec<_> = FAULTS.iter().map(|fault| fault.name()).collect();
        Fault::from_name(name).unwrap_or_else(|| panic!("there is no fault {name:?}; there are {known:?}"))
    };
    let chosen: Vec<_> = names.iter().map(by_name).collect();
    let (mut rows, mut repeated) = (Vec::new(), Vec::new());
    for fault in if chosen.is_empty() { FAULTS.to_vec() } else { chosen.clone() } {
        eprintln!("{}: {}", fault.name(), fault.injection());
        let (of_fault, again) = repeat(fault, kind, scale).await;
        rows.extend(of_fault);
        if again > 0 {
            repeated.push(format!("{} {again} times", fault.name()));
        }
    }
    let repeated = if repeated.is_empty() { "nothing".to_owned() } else { repeated.join(", ") };
    let written =
        format!("Measured on {}, on {kind:?}; repeated because a promise was not kept at first: {repeated}", date());
    let page = figures(&rows, &scale, COMMAND, &written);
    println!("{page}");
    if arguments.is_empty() {
        std::fs::write(PAGE, promises() + &page).expect("a page that can be written");
    }
}

/// The outcomes of `fault`, and how often it was repeated: a machine that is busy for a whole budget looks like a fault itself. A
/// promise broken five times in a row fails.
async fn repeat(fault: Fault, kind: Kind, scale: Scale) -> (Vec<FaultOutcome>, u32) {
    for again in 0..5 {
        // In a task, so that all threads of the runtime can run it.
        let ran = tokio::spawn(async move { run(fault, kind, scale, &Semaphore::new(1)).await }).await;
        let problems: Vec<_> = ran.iter().flatten().flat_map(FaultOutcome::problems).collect();
        match ran {
            Ok(rows) if problems.is_empty() => return (rows, again),
            Ok(_) => problems.iter().for_each(|problem| eprintln!("{problem}")),
            Err(error) => eprintln!("{error}"),
        }
    }
    panic!("{}: not every promise is kept", fault.name());
}

/// Today, in UTC.
fn date() -> String {
    let days = SystemClock::new().now().as_micros() / 86_400_000_000;
    // Howard Hinnant's civil_from_days, for days after 1970.
    let (era, day) = ((days + 719_468) / 146_097, (days + 719_468) % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    format!("{}-{month:02}-{day:02}", 400 * era + year + u64::from(month <= 2))
}
