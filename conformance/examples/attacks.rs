//! `make attacks`: carries out every attack at full size, prints the results, and writes `docs/attacks.md`. With the name of an attack,
//! runs only that one and writes nothing; `--valkey` runs on Valkey; `--quick` uses the size of the tests.

use conformance::attacks::{ATTACKS, Attack, AttackOutcome, Scale, figures, promises, run};
use conformance::page_date::page_date;
use conformance::server::Kind;

const COMMAND: &str = "make attacks";
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/attacks.md");

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let flag = |name: &str| arguments.iter().any(|argument| argument == name);
    let kind = if flag("--valkey") { Kind::Valkey } else { Kind::Redis };
    let scale = if flag("--quick") { Scale::for_tests() } else { Scale::for_figures() };
    let names: Vec<_> = arguments.iter().filter(|argument| !argument.starts_with("--")).collect();
    let by_name = |name: &&String| {
        let known: Vec<_> = ATTACKS.iter().map(|attack| attack.name()).collect();
        Attack::from_name(name).unwrap_or_else(|| panic!("there is no attack {name:?}; there are {known:?}"))
    };
    let chosen: Vec<_> = names.iter().map(by_name).collect();
    let attacks = if chosen.is_empty() { ATTACKS.to_vec() } else { chosen };
    let (mut rows, mut problems) = (Vec::new(), Vec::new());
    let runs = attacks.into_iter().flat_map(|attack| attack.states().into_iter().map(move |state| (attack, state)));
    for (attack, state) in runs {
        eprintln!("{}, the store is {}", attack.name(), state.name());
        // In a task, so that all threads of the runtime can run it.
        match tokio::spawn(run(attack, state, kind, scale)).await {
            Ok(row) => rows.push(row),
            Err(error) => problems.push(format!("{}, the store is {}: {error}", attack.name(), state.name())),
        }
    }
    let page = figures(&rows, &scale, COMMAND, &format!("Measured on {}, on {kind:?}", page_date()));
    println!("{page}");
    problems.extend(rows.iter().flat_map(AttackOutcome::problems));
    assert!(problems.is_empty(), "not every bound holds:\n{}", problems.join("\n"));
    if arguments.is_empty() {
        std::fs::write(PAGE, promises() + &page).expect("a page that can be written");
    }
}
