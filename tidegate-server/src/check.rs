//! `tidegate check`: decisions from the shell, on any store. It asks the limiter and shows what it says.

mod answer;
mod words;

use std::io;

use tidegate::{Decision, Limiter, Request, RuleSet, Secret, StoreError};
use tidegate_rules::RuleFile;

pub use answer::CheckAnswer;

use crate::cli::CheckArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use crate::store::{AnyStore, StoreUrl};
use words::Runs;

pub(crate) fn run(arguments: &CheckArgs, output: &mut Output<'_>) -> Result<Exit, Failure> {
    let attributes = arguments.request.attributes()?;
    let url = StoreUrl::parse(&arguments.store).map_err(|why| Failure::usage(format!("--store: {why}")))?;
    let secret = arguments.secret.secret()?;
    let file = crate::rules::load(&arguments.rules)??;
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
        let limiter = Limiter::new(file.rules().clone(), store).secret(&secret);
        ask(&limiter, &file, &request, arguments, output).await
    });
    done.map_err(|error| Failure::Store { error, meanwhile: meanwhile(file.rules(), &request) })
}

/// Asks as often as wanted, and shows each answer.
async fn ask(
    limiter: &Limiter<AnyStore>,
    file: &RuleFile,
    request: &Request<'_>,
    arguments: &CheckArgs,
    output: &mut Output<'_>,
) -> Result<Exit, StoreError> {
    let (mut runs, mut all, mut last) = (Runs::default(), true, None);
    for _ in 0..arguments.times {
        if output.is_closed() {
            break; // nothing more is spent for nobody
        }
        let decision = one(limiter, request, arguments.peek).await?;
        all &= decision.is_allowed();
        if arguments.json {
            output.json(&CheckAnswer::new(&decision));
        } else if arguments.times > 1 {
            runs.add(&decision, output);
        }
        last = Some(decision);
    }
    if let Some(decision) = last.filter(|_| !arguments.json) {
        runs.end(output);
        words::print(&decision, file, request, output);
    }
    Ok(Exit::yes(all))
}

async fn one(limiter: &Limiter<AnyStore>, request: &Request<'_>, peek: bool) -> Result<Decision, StoreError> {
    if peek { limiter.peek(request).await } else { limiter.check(request).await }
}

/// What a door does with the request while the store fails.
fn meanwhile(rules: &RuleSet, request: &Request<'_>) -> &'static str {
    if rules.resolve(request).fails_closed() {
        "Meanwhile doors refuse this request with 503: a rule that applies says so in `on_failure`."
    } else {
        "Meanwhile doors let this request pass: no rule that applies says otherwise in `on_failure`."
    }
}
