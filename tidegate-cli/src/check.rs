//! `tidegate check`: decides a request from the shell, on any store.

mod text;

use std::io;

use tidegate::grants::GrantError;
use tidegate::spi::Store;
use tidegate::{Decision, Ending, Grant, Limiter, OnFailure, Request, RuleSet, Secret, StoreError, Timer};
use tidegate_rules::RuleFile;
use tidegate_server::command::{Exit, Failure, Output, count, format_duration, load_rule_file, tokio_timer};
use tidegate_server::{AnyStore, CheckResponse, StoreUrl};

use crate::cli::CheckArgs;
use text::DecisionRuns;

pub(crate) fn run(arguments: &CheckArgs, output: &mut Output<'_>) -> Result<Exit, Failure> {
    let attributes = arguments.request.attributes()?;
    let url = StoreUrl::parse(&arguments.store).map_err(|reason| Failure::usage(format!("--store: {reason}")))?;
    let secret = arguments.secret.secret()?;
    let file = load_rule_file(&arguments.rules)??;
    if url.is_shared() && secret.is_none() {
        output.warn("anyone who reads the store can guess subjects; set TIDEGATE_SECRET");
    }
    let secret = secret.unwrap_or_else(Secret::public);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error: io::Error| Failure::usage(format!("cannot start the async runtime: {error}")))?;
    let request = attributes.request();
    let result = runtime.block_on(async {
        let store = AnyStore::open(&url, &arguments.namespace.namespace).await?;
        for warning in store.warnings() {
            output.warn(warning);
        }
        let limiter = Limiter::new(file.rules().clone(), store).with_secret(&secret);
        decide_all(&limiter, &file, &request, arguments, &tokio_timer(), output).await
    });
    result.map_err(|error| {
        let meanwhile = meanwhile(file.rules(), &request, &error);
        Failure::Store { error, meanwhile }
    })
}

/// Decides the request `--times` times, and prints each decision.
async fn decide_all(
    limiter: &Limiter<impl Store>,
    file: &RuleFile,
    request: &Request<'_>,
    arguments: &CheckArgs,
    timer: &impl Timer,
    output: &mut Output<'_>,
) -> Result<Exit, StoreError> {
    let mut held = CommandSlots { limiter, leases: Vec::new() };
    let (mut runs, mut all_allowed, mut last) = (DecisionRuns::default(), true, None);
    for _ in 0..arguments.times {
        if output.is_closed() {
            break; // the reader has left, so nothing more is consumed
        }
        wait_for_delay(last.as_ref().filter(|_| arguments.wait), timer).await;
        let mut decision = decide(limiter, request, arguments.peek).await?;
        held.leases.extend(Some(decision.take_grant().split_slots()).filter(|slots| !slots.is_empty()));
        all_allowed &= decision.is_allowed();
        if arguments.json {
            output.json(&CheckResponse::new(&decision));
        } else if arguments.times > 1 {
            runs.add(&decision, output);
        }
        last = Some(decision);
    }
    if let Some(decision) = last.as_ref().filter(|_| !arguments.json) {
        runs.finish(output);
        text::print_decision(decision, file, request, output);
    }
    wait_for_delay(last.as_ref().filter(|_| arguments.wait), timer).await;
    held.release(output).await;
    Ok(Exit::from_success(all_allowed))
}

/// The slots that the decisions took. They are held until the last decision, so that further requests find them taken, and then
/// released: nothing would hold them after this command.
struct CommandSlots<'l, S: Store> {
    limiter: &'l Limiter<S>,
    leases: Vec<Grant>,
}

impl<S: Store> CommandSlots<'_, S> {
    /// Releases the slots and says so.
    async fn release(mut self, output: &mut Output<'_>) {
        let (number, mut failure) = (self.leases.len(), None);
        for mut lease in std::mem::take(&mut self.leases) {
            let duration = lease.duration().unwrap_or_default();
            if let Err(GrantError::Store(error)) = self.limiter.end(&mut lease, &Ending::Release).await {
                failure = Some((error, duration));
            }
        }
        match failure {
            Some((error, duration)) => {
                let duration = format_duration(duration);
                output.warn(format_args!("slots were not released and run out within {duration}: {error}"));
            }
            None if number > 0 => {
                let slots = count(number, "slot");
                output.info(format_args!("released {slots}: this command holds none after its end"));
            }
            None => {}
        }
    }
}

impl<S: Store> Drop for CommandSlots<'_, S> {
    fn drop(&mut self) {
        self.leases.drain(..).for_each(|lease| self.limiter.spawn_end(lease, &Ending::Release));
    }
}

/// Waits for the delay of a decision, which was printed before.
async fn wait_for_delay(decision: Option<&Decision>, timer: &impl Timer) {
    if let Some(delay) = decision.map(Decision::delay).filter(|delay| !delay.is_zero()) {
        timer.sleep(delay).await;
    }
}

/// The decision of the store. A failure of the store is an error, since a decision of this process alone would say nothing
/// about the service.
async fn decide(limiter: &Limiter<impl Store>, request: &Request<'_>, peek: bool) -> Result<Decision, StoreError> {
    let plan = limiter.plan(request).with_on_failure(OnFailure::Closed);
    limiter.plans().check(&if peek { plan.with_peek() } else { plan }).await
}

/// What front ends do with the request while the store fails.
fn meanwhile(rules: &RuleSet, request: &Request<'_>, error: &StoreError) -> &'static str {
    let plan = rules.resolve(request);
    if plan.fails_closed(error) {
        "Until it answers, front ends reject this request with 503, as `on_failure` of a matching rule says."
    } else if plan.policies(error).any(|(_, policy)| !policy.lets_pass()) {
        "Until it answers, each instance decides this request on its own, as `on_failure` of a matching rule says."
    } else {
        "Until it answers, front ends let this request pass, as `on_failure` of the matching rules says."
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
    on_failure: share
";

    /// The delays that a command waits for, and its exit code. The clock of the store does not advance.
    fn run_check(flags: &str) -> (Vec<Duration>, Exit) {
        let line = format!("tidegate check --rules rules.yaml --action pipe {flags}");
        let Ok(Cli { command: Command::Check(arguments), .. }) = Cli::try_parse_from(line.split_whitespace()) else {
            panic!("{line} is not a check");
        };
        let file = RuleFile::parse("rules.yaml", RULES).unwrap();
        let limiter = Limiter::new(file.rules().clone(), MemoryStore::new().with_clock(ManualClock::default()));
        let delays = Arc::new(Mutex::new(Vec::new()));
        let timer = tidegate::SleepTimer::new(|delay| {
            let delays = Arc::clone(&delays);
            // Recorded only if the sleep is awaited.
            async move { delays.lock().unwrap().push(delay) }
        });
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut output = Output::new(&mut out, &mut err);
        let request = Request::new("pipe");
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let exit = runtime.block_on(decide_all(&limiter, &file, &request, &arguments, &timer, &mut output));
        let delays = delays.lock().unwrap().clone();
        (delays, exit.unwrap())
    }

    /// Otherwise `check … && ./deliver` would deliver too early.
    #[test]
    fn the_flag_wait_waits_for_the_delay_of_each_decision() {
        let seconds = |delays: &[u64]| delays.iter().copied().map(Duration::from_secs).collect::<Vec<_>>();
        assert_eq!(run_check("--wait"), (seconds(&[]), Exit::Success));
        assert_eq!(run_check("--wait --times 3"), (seconds(&[1, 2]), Exit::Success));
        assert_eq!(run_check("--wait --times 3 --json"), (seconds(&[1, 2]), Exit::Success));
        assert_eq!(run_check("--wait --times 4"), (seconds(&[1, 2]), Exit::Negative), "a denied request has no delay");
        assert_eq!(run_check("--times 3"), (seconds(&[]), Exit::Success));
    }
}
