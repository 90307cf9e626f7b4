//! Renders `docs/attacks.md`: the attacks and their bounds, which are the table of this suite in words, then the figures of the last
//! run.

use super::attack::{ATTACKS, Attack, Door};
use super::outcome::AttackOutcome;
use super::scale::{Scale, TIMEOUT};
use crate::page::{cells, millis, start_figures, table};
use crate::suite::Answer;

const BOUNDS: &str = "\
# Attacks

Ten attacks by a client, on a real store that is well, slow, silent or full: how much passes, and what bystanders get meanwhile.
`make attacks` carries them out over real sockets and writes this page; `cargo run --release -p lab -- attacks NAME` carries out one of them, and
`make prove` runs the same suite in small doses.

## Bounds

| the store | passes for one subject, at most | bystanders within their limits | the circuit breaker |
|---|---|---|---|
| is well | its limit | all pass | never opens |
| is slow, within its timeout | its limit | all pass | never opens |
| is full | its limit, if the store knew the subject before; otherwise once more for each instance | all pass | never opens |
| is silent | its limit, and once more for each instance | all pass | opens, and closes when the store answers again |

Every single limit is compared with its bound. All rules have the default policy, `local`, and the default timeout, 25 ms. A store that answers
later is silent, also if a busy machine does not run it: an independent connection measures its slowest answer, with an accuracy of 3 ms. If an
instance is [overloaded](failure.md#overload), *exhausted clients* get at most their limits once more.

## Attacks

";

const NOTES: &str = "
- The library runs without `denial_cache`, so that every call reaches the store. A full store does not evict; *made-up keys* fill it.
- *Hang-ups* run at every latency of the store from 0 to 19 ms.
- *Subject flood*: the store remembers 1,000 addresses (`anonymous: { most: 1000 }`); further ones share
  [overflow buckets](guide.md#floods-of-subjects). At most 1,000 requests pass, those under way at that moment, and the limits of the 1,024
  buckets of the network. A newcomer from another network shares a bucket with a probability of 1/64 (1/244 with the default of a million
  addresses): at most 1 in 32 is denied.

";

const COLUMNS: &str = "attack | the store | attacker sent | passed | at most | refused with 503 | bystander sent \
    | allowed | p50, ms | p99, ms | breaker opened | overloads | slowest answer, ms";

/// Renders the attacks and bounds, which do not depend on a run.
pub fn promises() -> String {
    let attacks = ATTACKS.map(|attack| {
        let (name, door, description) = attack.row();
        let door = if door == Door::Gateway { "the gateway" } else { "the library" };
        let instances = if attack.instances() == 1 { "" } else { ", two instances" };
        cells([&name, &description, &format!("{door}{instances}")])
    });
    [BOUNDS, &table("attack | what the attacker does | at", attacks), NOTES].concat()
}

/// Renders the figures of a run.
pub fn figures(rows: &[AttackOutcome], scale: &Scale, command: &str, stamp: &str) -> String {
    let Scale { connections, requests, burst, bursts, held, pace, .. } = *scale;
    [
        start_figures(command, stamp),
        format!(
            "Timeout {TIMEOUT:?}; {connections} connections with {requests} requests each; {burst} checks at the same moment; {bursts} bursts that \
             are dropped; {held} calls that are held. A bystander sends a request every {pace:?}. Attacker, bystanders, instances, store and upstream \
             share one machine; latencies are wall time there, and are not asserted.\n\n"
        ),
        "*Passed* and *at most* are sums over all limits that the attacker tried to exceed. *Overloads* are plans that waited too long or were \
         too many. *Slowest answer* is that of the store, as the independent connection saw it.\n\n"
            .to_owned(),
        table(COLUMNS, rows.iter().map(figure)),
    ]
    .concat()
}

fn figure(row: &AttackOutcome) -> [String; 13] {
    let AttackOutcome { attack, attacker, bystander, .. } = row;
    cells([
        &attack.name(),
        &row.state.name(),
        &row.sent,
        &row.passed(),
        &row.bound(),
        &attacker.of(Answer::Refused),
        &bystander.total(),
        &bystander.of(Answer::Allowed),
        &millis(row.latencies[0]),
        &millis(row.latencies[1]),
        &row.breaker_openings,
        &row.overloads,
        &row.slowest_answer.map_or("-".to_owned(), millis),
    ])
}

/// The start of the row of an attack in the figures.
pub fn row_start(attack: Attack, state: &str) -> String {
    format!("| {} | {state} |", attack.name())
}
