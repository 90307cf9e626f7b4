//! `tidegate check`: decisions from the shell, on any store. It asks the limiter and shows what it says.

mod text;

use std::io;

use tidegate::spi::Store;
use tidegate::{Decision, Limiter, OnFailure, Request, RuleSet, Secret, StoreError, Timer};
use tidegate_rules::RuleFile;

use crate::cli::CheckArgs;
use text::Runs;
use tidegate_server::command::{Exit, Failure, Output, tokio_timer};
use tidegate_server::{AnyStore, CheckResponse, StoreUrl};

pub(crate) fn run(arguments: &CheckArgs, output: &mut Output<'_>) -> Result<Exit, Failure> {
    let attributes = arguments.request.attributes()?;
    let url = StoreUrl::parse(&arguments.store).map_err(|why| Failure::usage(format!("--store: {why}")))?;
    let secret = arguments.secret.secret()?;
    let file = tidegate_server::command::load_rule_file(&arguments.rules)??;
    if url.is_shared() && secret.is_none() {
        output.warn("anyone who reads the store can guess subjects; set TIDEGATE_SECRET");
    }
    let secret = secret.unwrap_or_else(Secret::public);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error: io::Error| Failure::usage(format!("no runtime can be started: {error}")))?;
    let request = attributes.request();
    let done = runtime.block_on(async {
        let store = AnyStore::open(&url).await?;
        for warning in store.warnings() {
            output.warn(warning);
        }
        let limiter = Limiter::new(file.rules().clone(), store).with_secret(&secret);
        ask(&limiter, &file, &request, arguments, &tokio_timer(), output).await
    });
    done.map_err(|error| Failure::Store { error, meanwhile: meanwhile(file.rules(), &request) })
}

/// Asks as often as wanted, and shows each answer.
async fn ask(
    limiter: &Limiter<impl Store>,
    file: &RuleFile,
    request: &Request<'_>,
    arguments: &CheckArgs,
    timer: &impl Timer,
    output: &mut Output<'_>,
) -> Result<Exit, StoreError> {
    let (mut runs, mut all, mut last) = (Runs::default(), true, None);
    for _ in 0..arguments.times {
        if output.is_closed() {
            break; // nothing more is spent for nobody
        }
        hold(last.as_ref().filter(|_| arguments.wait), timer).await;
        let decision = one(limiter, request, arguments.peek).await?;
        all &= decision.is_allowed();
        if arguments.json {
            output.json(&CheckResponse::new(&decision));
        } else if arguments.times > 1 {
            runs.add(&decision, output);
        }
        last = Some(decision);
    }
    if let Some(decision) = last.as_ref().filter(|_| !arguments.json) {
        runs.end(output);
        text::print(decision, file, request, output);
    }
    hold(last.as_ref().filter(|_| arguments.wait), timer).await;
    Ok(Exit::from_success(all))
}

/// Waits until the request may go on. It is shown before, so that nobody wonders what is going on.
async fn hold(decision: Option<&Decision>, timer: &impl Timer) {
    if let Some(delay) = decision.map(Decision::delay).filter(|delay| !delay.is_zero()) {
        timer.sleep(delay).await;
    }
}

/// The decision of the store. A failure of the store is an error, since a decision of this process alone would tell nothing
/// about the service.
async fn one(limiter: &Limiter<impl Store>, request: &Request<'_>, peek: bool) -> Result<Decision, StoreError> {
    let plan = limiter.plan(request).with_on_failure(OnFailure::Closed);
    limiter.check_plan(&if peek { plan.with_peek() } else { plan }).await
}

/// What a door does with the request while the store fails.
fn meanwhile(rules: &RuleSet, request: &Request<'_>) -> &'static str {
    let plan = rules.resolve(request);
    if plan.fails_closed() {
        "Meanwhile doors refuse this request with 503: a rule that applies says so in `on_failure`."
    } else if plan.policies().any(|(_, policy)| !policy.lets_pass()) {
        "Meanwhile each instance judges this request by itself: a rule that applies says so in `on_failure`."
    } else {
        "Meanwhile doors let this request pass: no rule that applies says otherwise in `on_failure`."
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use clap::Parser;
    use tidegate::{ManualClock, MemoryStore};

    use super::*;
    use crate::cli::{Cli, Command};

    const RULES: &str = "
version: 1
rules:
  - id: pipe
    match: { action: pipe }
    per: []
    leaky_bucket: { rate: 1/s, queue: 2 }
    on_failure: open
";

    /// How long a command waits, and how it ends. The time of the store stands still.
    fn waits(flags: &str) -> (Vec<Duration>, Exit) {
        let line = format!("tidegate check --rules rules.yaml --action pipe {flags}");
        let Ok(Cli { command: Command::Check(arguments), .. }) = Cli::try_parse_from(line.split_whitespace()) else {
            panic!("{line} is no check");
        };
        let file = RuleFile::parse("rules.yaml", RULES).unwrap();
        let limiter = Limiter::new(file.rules().clone(), MemoryStore::new().with_clock(ManualClock::default()));
        let waited = Arc::new(Mutex::new(Vec::new()));
        let timer = tidegate::SleepTimer::new(|span| {
            let waited = Arc::clone(&waited);
            // Only what is awaited is waited for.
            async move { waited.lock().unwrap().push(span) }
        });
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut output = Output::new(&mut out, &mut err);
        let request = Request::new("pipe");
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let asked = runtime.block_on(ask(&limiter, &file, &request, &arguments, &timer, &mut output));
        let waited = waited.lock().unwrap().clone();
        (waited, asked.unwrap())
    }

    /// Otherwise `check … && ./deliver` sends what should have been held.
    #[test]
    fn who_asks_to_wait_is_held_as_long_as_the_decision_says() {
        let seconds = |spans: &[u64]| spans.iter().copied().map(Duration::from_secs).collect::<Vec<_>>();
        assert_eq!(waits("--wait"), (seconds(&[]), Exit::Success));
        assert_eq!(waits("--wait --times 3"), (seconds(&[1, 2]), Exit::Success));
        assert_eq!(waits("--wait --times 3 --json"), (seconds(&[1, 2]), Exit::Success));
        assert_eq!(waits("--wait --times 4"), (seconds(&[1, 2]), Exit::Negative), "a denied request is not held");
        assert_eq!(waits("--times 3"), (seconds(&[]), Exit::Success));
    }
}
