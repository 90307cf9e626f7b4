//! Renders `docs/ledger-crashes.md`: the promises in words, then the figures of the last run.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::load::CLIENTS;
use super::outcome::{Counts, RoundOutcome};
use super::strike::Deployment;

/// The heading of the figures.
pub const FIGURES: &str = "## Figures";

const PROMISES: &str = "\
# When processes of the ledger are killed

The crash suite generates this page. It starts real processes, kills them with SIGKILL at random moments under load, starts them again, and
compares what the clients noted with what [the ledger](ledger.md) has: `make ledger-crashes` (hundreds of rounds, about a quarter of an hour). `make test`
runs a few rounds. Everything random is drawn from a seed, which a failure prints, with the round and the history of the account:
`cargo run --release -p lab -- ledger-crashes --seed 7 --rounds 12` runs these rounds again. Processes interleave differently each time.

Clients consume units under a rule with `ledger: sync`, one with `async`, and one with `async` and `on_failure: local`, reserve units with idempotency keys, commit or release
them, repeat each of these calls with the same key at any instance, and take slots together with units, as
[exports](../examples/exports) do. They note every call and its answer: done, denied, 503, or none.

| killed | what that means |
|---|---|
| server | an instance with its flusher. The other one goes on; with the memory store there is no other |
| Redis | it has no persistence, so it loses all states, reservations and outboxes |
| PostgreSQL | the server and the processes of its connections, all at once |
| PostgreSQL stopped | the same with SIGSTOP, later SIGCONT: connections stay open, and nothing is answered |

In about every third round two or more are killed at about the same time. A round ends when all processes run again and calls under every rule are decided. Then the suite asserts, by
queries of the database:

1. **Every acknowledged consumption under `sync` is in the ledger once.** For every account and every cost, there are as many entries as
   acknowledged calls; beyond these, at most as many as calls with 503 or without an answer. There are at most as many refunds as such calls.
2. **Under `async` the same holds, except for what Redis loses.** Missing are at most the entries that were in its outbox when the suite looked into it, just before the
   kill, and calls that were answered after that look. What an instance allows without the store is in its journal, and never lost. Nothing is lost when anything else is killed, and nothing with the memory store, which has a journal.
3. **No idempotency key is counted twice**: at most one commit for each key, and with the cost of that key. Acknowledged reservations under `sync` are found again after a loss.
4. **No slot is leaked**: every slot of every tenant can be taken again.
5. **The gate equals the ledger**: what each instance says is used and reserved is what the ledger says, also of tenants without calls in that round, and
   `/v1/usage/compare` lists no difference.
6. **Never more than the quota is admitted**: under `sync` always, under `async` unless Redis lost something. The balance of an account is the sum of its entries.

";

/// Renders the promises, which do not depend on a run.
pub fn promises() -> String {
    PROMISES.to_owned()
}

/// Renders the figures of runs.
pub fn figures(outcomes: &[RoundOutcome], seeds: &[u64], command: &str, written: &str) -> String {
    let mut page = format!(
        "{FIGURES}\n\n```sh\n{command}\n```\n\n{written}. {} rounds, {CLIENTS} clients, seeds {}. All promises are kept. *Lost* are units that were \
         acknowledged under `async` and are not in the ledger; *lag* is the age of the oldest entry in an outbox when Redis was killed. Calls \
         of the same rounds are counted together.\n\n\
         | processes | killed | rounds | done | denied | 503 | no answer | lost units | largest lag |\n|---|---|---|---|---|---|---|---|---|\n",
        outcomes.len(),
        seeds.iter().map(u64::to_string).collect::<Vec<_>>().join(", "),
    );
    let mut rows = BTreeMap::<(Deployment, String), Vec<&RoundOutcome>>::new();
    for outcome in outcomes {
        rows.entry((outcome.deployment, outcome.victims())).or_default().push(outcome);
    }
    for ((deployment, victims), rounds) in rows {
        let Counts { done, denied, failed, missing } =
            rounds.iter().fold(Counts::default(), |counts, round| counts.plus(round.counts));
        let lost: u64 = rounds.iter().map(|round| round.lost_units).sum();
        let lag = rounds.iter().map(|round| round.lag_micros).max().unwrap_or_default();
        let lag =
            if rounds.iter().any(|round| round.lost_store()) { format!("{} ms", lag / 1_000) } else { "-".to_owned() };
        let _ = writeln!(
            page,
            "| {} | {victims} | {} | {done} | {denied} | {failed} | {missing} | {lost} | {lag} |",
            deployment.name(),
            rounds.len(),
        );
    }
    page
}
