//! Renders `docs/ledger-crashes.md`: the promises in words, then the figures of the last run.

use std::collections::BTreeMap;

use super::load::CLIENTS;
use super::run::RoundOutcome;
use super::strike::Deployment;
use crate::page::{cells, start_figures, table};
use crate::suite::{Answer, AnswerCounts};

const PROMISES: &str = "\
# Crashes of the ledger

`make ledger-crashes` kills real processes at random moments under load, starts them again, compares what clients noted with what
[the ledger](ledger.md) has, and writes this page. `make prove` runs the same suite in small doses, and `cargo run --release -p lab --
ledger-crashes --seed 7 --rounds 12` runs the rounds of one seed, which a failure prints.

A *fleet* is two instances on Redis and PostgreSQL; a *single* instance has its own memory and SQLite. Clients consume units under `sync`, under
`async`, and under `async` with `on_failure: local`, reserve, commit and release them, repeat these calls at any instance, and take slots.

| killed | effect |
|---|---|
| server | an instance with its flusher |
| Redis | it loses all states, reservations and outboxes |
| PostgreSQL | with the processes of its connections |
| PostgreSQL stopped | connections stay open, and nothing is answered (SIGSTOP, later SIGCONT) |

After each round the suite asserts, by queries of the database:

1. **Every acknowledged consumption under `sync` is in the ledger once.** Further entries and refunds are at most as many as calls with 503 or no
   answer.
2. **Under `async` the same holds, except for what Redis loses**: at most the entries in its outbox just before the kill, and calls answered
   after that. Nothing is lost when anything else is killed, nor what an instance allowed without the store.
3. **No idempotency key is counted twice.** Acknowledged reservations under `sync` are found again after a loss.
4. **No slot is leaked**: every slot can be taken again.
5. **The store equals the ledger** at each instance, and `/v1/usage/compare` lists no difference.
6. **Never more than the quota is admitted**: under `sync` always, under `async` unless Redis lost something.

";

const COLUMNS: &str = "processes | killed | rounds | done | denied | 503 | no answer | lost units | largest lag, ms";

/// Renders the promises, which do not depend on a run.
pub fn promises() -> String {
    PROMISES.to_owned()
}

/// Renders the figures of runs.
pub fn figures(outcomes: &[RoundOutcome], seeds: &[u64], command: &str, stamp: &str) -> String {
    let mut by_victims = BTreeMap::<(Deployment, String), Vec<&RoundOutcome>>::new();
    for outcome in outcomes {
        by_victims.entry((outcome.deployment, outcome.victims())).or_default().push(outcome);
    }
    let rows = by_victims.into_iter().map(|((deployment, victims), rounds)| {
        let mut counts = AnswerCounts::default();
        for round in &rounds {
            counts.add(&round.counts);
        }
        let [done, denied, failed, missing] =
            [Answer::Allowed, Answer::Denied, Answer::Refused, Answer::Missing].map(|answer| counts.of(answer));
        let lost: u64 = rounds.iter().map(|round| round.lost_units).sum();
        let lag = rounds.iter().filter(|round| round.lost_store()).map(|round| round.lag_micros / 1_000).max();
        let lag = lag.map_or("-".to_owned(), |millis| millis.to_string());
        cells([&deployment.name(), &victims, &rounds.len(), &done, &denied, &failed, &missing, &lost, &lag])
    });
    let seeds: Vec<_> = seeds.iter().map(u64::to_string).collect();
    let (count, seeds) = (outcomes.len(), seeds.join(", "));
    [
        start_figures(command, stamp),
        format!(
            "{count} rounds, {CLIENTS} clients, seeds {seeds}. All promises are kept. *Lost* are units that were acknowledged under `async` and are \
             not in the ledger; *lag* is the age of the oldest entry in an outbox when Redis was killed. Calls of the same rounds are counted \
             together.\n\n"
        ),
        table(COLUMNS, rows),
    ]
    .concat()
}
