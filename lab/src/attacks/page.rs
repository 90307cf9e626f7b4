//! Renders `docs/attacks.md`: the attacks and their bounds, which are the table of this suite in words, then the figures of the last
//! run.

use std::fmt::Write;
use std::time::Duration;

use super::attack::{ATTACKS, Attack, Door};
use super::outcome::AttackOutcome;
use super::scale::{Scale, TIMEOUT};

/// The heading of the figures.
pub const FIGURES: &str = "## Figures";

const INTRODUCTION: &str = "\
# Under attack

What a hostile client gets, and what a bystander gets meanwhile. The attack suite generates this page. It carries out each attack over
real sockets, on a real store that is well, slow, silent or full: `make attacks` (a few minutes; `cargo run --release -p conformance
--example attacks -- hang-ups` for a single attack). `make test` runs the same suite with smaller attacks, and fails if a bound is
exceeded. [When the store fails](failure.md) explains the policies.

## Bounds

All rules leave `on_failure` at its default, `local`, and `--store-budget` at its default, 25 ms. In the library, `denial_cache` is off, so
that every call reaches the store.

| the store | what passes with one API key, at most | bystanders within their limits | the circuit breaker |
|---|---|---|---|
| is well | its limit | all pass | never opens |
| is slow, within its timeout | its limit | all pass | never opens |
| is full | its limit, if the store knew the key before; otherwise once more for each instance | all pass | never opens |
| is silent | its limit, and once more for each instance | all pass | opens, and closes when the store answers again |

An instance is [overloaded](failure.md#overload) if too many plans wait for the store, or for too long. The key of a flood is refused then. A key
that has no other plan waiting is decided in memory, by its limit: *exhausted clients* get at most their limits once more in such a run.

A full store has no memory left and does not evict (`noeviction`). *Passes* is counted behind the gateway, or by the caller of the
library. What passes is compared with the bound for every single limit.

A store that answers later than its timeout is silent, whatever the reason: on a busy machine the server itself may not run for that
long. Therefore an independent connection measures the slowest answer of the store during each attack. If it comes within 3 ms of the
timeout, the bound of a silent store applies to that run.

## Attacks

| attack | what the attacker does | at |
|---|---|---|
";

const NOTES: &str = "
- *Hang-ups* run at every latency of the store from 0 to 19 ms.
- *Made-up keys* make the store full by themselves.
- *Subject flood*: of the addresses under the rule, the store remembers 1,000 (`anonymous: { most: 1000 }`). Past that, newcomers share
  [overflow buckets](guide.md#floods-of-subjects), each with the limit of one address. The flood gets at most 1,000 requests, those under
  way when that number was reached, and the limits of the 1,024 buckets of its network. Newcomers from other networks share a bucket with it
  with a probability of 1/64: of these bystanders at most 1 in 32 is denied. With the default of a million addresses, it is 1/244.

";

/// Renders the attacks and bounds, which do not depend on a run.
pub fn promises() -> String {
    let mut page = INTRODUCTION.to_owned();
    for attack in ATTACKS {
        let (name, description) = (attack.name(), attack.description());
        let door = match attack.door() {
            Door::Gateway => "the gateway",
            Door::Library => "the library",
        };
        let instances = if attack.instances() == 1 { "" } else { ", two instances" };
        let _ = writeln!(page, "| {name} | {description} | {door}{instances} |");
    }
    page.push_str(NOTES);
    page
}

/// Renders the figures of a run.
pub fn figures(rows: &[AttackOutcome], scale: &Scale, command: &str, written: &str) -> String {
    let Scale { connections, requests, burst, bursts, held, pace, .. } = *scale;
    let mut page = format!(
        "{FIGURES}\n\n```sh\n{command}\n```\n\n{written}. Timeout {TIMEOUT:?}; {connections} connections with {requests} requests each; \
         {burst} checks at the same moment; {bursts} bursts that are dropped; {held} calls that are held. A bystander sends a request \
         every {pace:?}. Attacker, bystanders, instances, store and upstream share one machine; latencies are wall time there, and are \
         not asserted.\n\n"
    );
    page.push_str(
        "*Passed* and *at most* are sums over all limits that the attacker tried to exceed. *Overloads* are plans that waited too long or were \
         too many. *Slowest answer* is that of the store, as the independent connection saw it.\n\n",
    );
    page.push_str("| attack | the store | attacker sent | passed | at most | refused with 503 | bystander sent | allowed | p50 | p99 ");
    page.push_str(
        "| breaker opened | overloads | slowest answer |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let _ = writeln!(page, "{}", figure(row));
    }
    page
}

fn figure(row: &AttackOutcome) -> String {
    let AttackOutcome { attack, attacker, bystander, .. } = row;
    let fields = [
        attack.name().to_owned(),
        row.state.name(),
        attacker.asked.to_string(),
        row.passed().to_string(),
        row.bound().to_string(),
        attacker.refused.to_string(),
        bystander.asked.to_string(),
        bystander.allowed.to_string(),
        time(bystander.latency(0.5)),
        time(bystander.latency(0.99)),
        row.breaker_openings.to_string(),
        row.overloads.to_string(),
        row.slowest_answer.map_or("-".to_owned(), time),
    ];
    format!("| {} |", fields.join(" | "))
}

fn time(span: Duration) -> String {
    format!("{:.1} ms", span.as_secs_f64() * 1000.0)
}

/// The start of the row of an attack in the figures.
pub fn row_start(attack: Attack, state: &str) -> String {
    format!("| {} | {state} |", attack.name())
}
