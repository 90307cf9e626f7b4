//! `tidegate-lab faults`, `attacks` and `ledger-crashes`: run a suite, print its figures, and write its page. A promise that does not
//! hold is exit code 1, and the page stays as it was.

use clap::Args;
use conformance::server::Kind;
use tidegate::{Clock, SystemClock};
use tidegate_server::command::{Exit, Failure, Output};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::attacks::{ATTACKS, Attack, AttackOutcome};
use crate::faults::{FAULTS, Fault, FaultOutcome, LeaseOutcome};
use crate::ledger_crashes::{Deployment, RunOptions};
use crate::{attacks, faults, ledger_crashes, traffic};

/// The rows of a suite that run, and how.
#[derive(Args)]
pub(crate) struct SuiteArgs {
    /// Run only these rows, and write no page
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Run on Valkey instead of Redis, and write no page
    #[arg(long)]
    valkey: bool,
    /// Use the size of the tests, and write no page
    #[arg(long)]
    quick: bool,
}

/// Which crashes run.
#[derive(Args)]
pub(crate) struct CrashArgs {
    /// Run only this seed, and write no page
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Rounds of each seed; other than the default, no page is written
    #[arg(long, value_name = "N", default_value_t = CRASH_ROUNDS)]
    rounds: u32,
    /// Run only two instances with Redis and PostgreSQL, and write no page
    #[arg(long, conflicts_with = "single")]
    fleet: bool,
    /// Run only one instance with SQLite, and write no page
    #[arg(long)]
    single: bool,
}

/// The seeds of the page, each of which has its own processes, the rounds of each, and about how many calls a round has.
const CRASH_SEEDS: [u64; 4] = [1, 2, 3, 4];
const CRASH_ROUNDS: u32 = 40;
const CRASH_CALLS: u64 = 300;

impl SuiteArgs {
    fn kind(&self) -> Kind {
        if self.valkey { Kind::Valkey } else { Kind::Redis }
    }

    /// Only a run of the whole suite says all that the page says.
    fn writes_page(&self) -> bool {
        self.names.is_empty() && !self.valkey && !self.quick
    }

    /// The rows of these names, or all of them.
    fn rows<R: Copy>(&self, all: &[R], name: impl Fn(R) -> &'static str) -> Result<Vec<R>, Failure> {
        let find = |wanted: &String| {
            let found = all.iter().copied().find(|row| name(*row) == wanted);
            let known = || all.iter().map(|row| name(*row)).collect::<Vec<_>>().join(", ");
            found.ok_or_else(|| Failure::usage(format!("there is no row {wanted:?}; there are {}", known())))
        };
        if self.names.is_empty() { Ok(all.to_vec()) } else { self.names.iter().map(find).collect() }
    }

    fn stamp(&self) -> String {
        format!("Measured on {}, on {:?}", page_date(), self.kind())
    }
}

/// Runs `tidegate-lab faults`.
pub(crate) fn faults(arguments: &SuiteArgs, output: &mut Output<'_>) -> Result<Exit, Failure> {
    let scale = if arguments.quick { faults::Scale::for_tests() } else { faults::Scale::for_figures() };
    let (chosen, kind) = (arguments.rows(&FAULTS, Fault::name)?, arguments.kind());
    let (mut rows, mut leases) = (Vec::new(), Vec::new());
    runtime()?.block_on(async {
        for fault in chosen {
            output.info(format!("{}: {}", fault.name(), fault.injection()));
            // In a task, so that all threads of the runtime can run it.
            let run = tokio::spawn(async move { faults::run(fault, kind, scale, &Semaphore::new(1)).await });
            let (by_policy, holders) = run.await.expect("a fault that ends");
            rows.extend(by_policy);
            leases.push(holders);
        }
    });
    let figures = faults::figures(&rows, &leases, &scale, "make faults", &arguments.stamp());
    let problems = rows.iter().flat_map(FaultOutcome::problems).chain(leases.iter().flat_map(LeaseOutcome::problems));
    let page = arguments.writes_page().then(|| ("faults.md", faults::promises()));
    finish(&figures, &problems.collect::<Vec<_>>(), page, output)
}

/// Runs `tidegate-lab attacks`.
pub(crate) fn attacks(arguments: &SuiteArgs, output: &mut Output<'_>) -> Result<Exit, Failure> {
    let scale = if arguments.quick { attacks::Scale::for_tests() } else { attacks::Scale::for_figures() };
    let (chosen, kind) = (arguments.rows(&ATTACKS, Attack::name)?, arguments.kind());
    let runs = chosen.into_iter().flat_map(|attack| attack.states().into_iter().map(move |state| (attack, state)));
    let (mut rows, mut problems) = (Vec::new(), Vec::new());
    runtime()?.block_on(async {
        for (attack, state) in runs {
            let name = format!("{}, the store is {}", attack.name(), state.name());
            output.info(&name);
            // In a task, so that all threads of the runtime can run it.
            match tokio::spawn(attacks::run(attack, state, kind, scale)).await {
                Ok(row) => rows.push(row),
                Err(error) => problems.push(format!("{name}: {error}")),
            }
        }
    });
    let figures = attacks::figures(&rows, &scale, "make attacks", &arguments.stamp());
    problems.extend(rows.iter().flat_map(AttackOutcome::problems));
    let page = arguments.writes_page().then(|| ("attacks.md", attacks::promises()));
    finish(&figures, &problems, page, output)
}

/// Runs `tidegate-lab ledger-crashes`. A promise that does not hold panics, with everything that is known of the round.
pub(crate) fn ledger_crashes(arguments: &CrashArgs, output: &mut Output<'_>) -> Result<Exit, Failure> {
    let seeds = arguments.seed.map_or(CRASH_SEEDS.to_vec(), |seed| vec![seed]);
    let deployments = match (arguments.fleet, arguments.single) {
        (true, false) => vec![Deployment::Fleet],
        (false, true) => vec![Deployment::Single],
        _ => Deployment::ALL.to_vec(),
    };
    let program = std::env::current_exe().map_err(|error| Failure::usage(format!("cannot find itself: {error}")))?;
    let mut outcomes = Vec::new();
    runtime()?.block_on(async {
        for &seed in &seeds {
            output.info(format!("seed {seed}: {} rounds", arguments.rounds));
            let mut runs = JoinSet::new();
            for &deployment in &deployments {
                runs.spawn(ledger_crashes::run(RunOptions {
                    deployment,
                    seed,
                    rounds: arguments.rounds,
                    calls: CRASH_CALLS,
                    // Reservations of every second run end by themselves.
                    reservation_ttl: if seed % 2 == 0 { 2 } else { 3_600 },
                    program: program.clone(),
                }));
            }
            outcomes.extend(runs.join_all().await.into_iter().flatten());
        }
    });
    let stamp = format!("Measured on {}", page_date());
    let figures = ledger_crashes::figures(&outcomes, &seeds, "make ledger-crashes", &stamp);
    let whole = seeds == CRASH_SEEDS && arguments.rounds == CRASH_ROUNDS && deployments == Deployment::ALL;
    finish(&figures, &[], whole.then(|| ("ledger-crashes.md", ledger_crashes::promises())), output)
}

/// Prints the figures, and writes the page of these promises if all of them hold.
fn finish(
    figures: &str,
    problems: &[String],
    page: Option<(&str, String)>,
    output: &mut Output<'_>,
) -> Result<Exit, Failure> {
    output.print(figures);
    if !problems.is_empty() {
        output.info(format!("not every promise is kept:\n{}", problems.join("\n")));
        return Ok(Exit::Negative);
    }
    if let Some((name, promises)) = page {
        let path = format!("{}/../docs/{name}", env!("CARGO_MANIFEST_DIR"));
        let written = std::fs::write(&path, promises + figures);
        written.map_err(|error| Failure::usage(format!("cannot write {path}: {error}")))?;
    }
    Ok(Exit::Success)
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Runtime::new().map_err(|error| traffic::runtime_failure(&error))
}

/// Today, in UTC.
fn page_date() -> String {
    let now = i64::try_from(SystemClock::new().now().as_micros()).expect("a time of this century");
    let time = jiff::Timestamp::from_microsecond(now).expect("a time of this century");
    time.to_zoned(jiff::tz::TimeZone::UTC).date().to_string()
}
