//! The scripts: the library's limits in Lua, composed with this crate's input and output.
//!
//! Each file in `scripts/` starts with its contract: purpose, keys, arguments, reply.

use std::sync::LazyLock;

use redis::Cmd;
use tidegate::spi::algorithm::lua::{self, FUNCTIONS, LuaFunction};

use crate::outbox::MAX_OUTBOX_ENTRIES;

const DECIDE_ONE: &str = include_str!("scripts/decide_one.lua");
const DECIDE_BATCH: &str = concat!(include_str!("scripts/decide_batch.lua"), include_str!("scripts/decide_plans.lua"));
const APPLY: &str = include_str!("scripts/apply.lua");
const LEDGER_ENTRY: &str = include_str!("scripts/ledger_entry.lua");
const TIME: &str = include_str!("scripts/time.lua");
const ADJUST: &str = include_str!("scripts/adjust.lua");
const HEARTBEAT: &str = include_str!("scripts/heartbeat.lua");
const LAST_ID: &str = include_str!("scripts/last_id.lua");
const WRITE_STATES: &str = include_str!("scripts/write_states.lua");
const READ_OUTBOX: &str = include_str!("scripts/read_outbox.lua");
const READ_STATES: &str = include_str!("scripts/read_states.lua");
const REPAIR_STATES: &str = include_str!("scripts/repair_states.lua");
const REBUILD_PARTITION: &str = include_str!("scripts/rebuild_partition.lua");
const DISCARD_GENERATION: &str = include_str!("scripts/discard_generation.lua");

/// The first lines of the variants of `adjust.lua`: with overflow routes there is a second key for each check, and with ledgers there are
/// four.
const WITHOUT_ROUTES: &str = "local ANONYMOUS, LEDGER, checks = false, false, #KEYS\n";
const WITH_ROUTES: &str = "local ANONYMOUS, LEDGER, checks = true, false, #KEYS / 2\n";
const WITH_LEDGER: &str = "local ANONYMOUS, LEDGER, checks = true, true, #KEYS / 4\n";

/// The first line of the variants of `decide_batch.lua`.
const NOT_FULL: &str = "local FULL = false\n";
const FULL: &str = "local FULL = true\n";

/// Every script of the store.
pub(crate) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(Scripts::compose);

/// Every script, with the hash that `EVALSHA` takes.
pub(crate) struct Scripts {
    /// `decide_one.lua` for each limit.
    decide_one: [Script; FUNCTIONS.len()],
    decide_batch: Script,
    /// `decide_batch.lua` for a server without memory.
    decide_batch_full: Script,
    /// `decide_batch.lua` for peeks only, which replicas and full servers accept.
    peek_batch: Script,
    adjust: ScriptVariants,
    heartbeat: Script,
    read_outbox: Script,
    read_states: Script,
    repair_states: Script,
    rebuild_partition: Script,
    discard_generation: Script,
}

/// A script with the hash that `EVALSHA` takes.
#[derive(Debug)]
pub(crate) struct Script {
    hash: String,
    text: String,
}

/// `adjust.lua` in its variants.
struct ScriptVariants {
    without_routes: Script,
    with_routes: Script,
    with_ledger: Script,
}

/// Which variant of `adjust.lua` some adjustments need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AdjustVariant {
    /// One key each.
    Plain,
    /// With overflow buckets.
    WithRoutes,
    /// With ledgers, and possibly with overflow buckets.
    WithLedger,
}

impl Scripts {
    fn compose() -> Self {
        let texts = FUNCTIONS.map(|function| function.text).concat();
        let names = FUNCTIONS.map(|function| function.name).join(", ");
        let layouts = FUNCTIONS.map(|function| layout(function.numbers + function.refund_numbers)).join(", ");
        let all_limits = format!("{texts}{}local limits = {{ {names} }}\n", lua::HOLDS);
        let layouts = format!("local layouts = {{ {layouts} }}\n");
        let decide_one = |LuaFunction { name, text, numbers, needs, .. }| {
            let is_bucket = name == "token_bucket";
            let limit = format!("local limit, layout, is_bucket = {name}, {}, {is_bucket}\n", layout(numbers));
            script("#!lua", &[needs, text, lua::HOLDS, &limit], "ARGV[3]", &[DECIDE_ONE])
        };
        let adjust = |first_lines: &str| {
            script(
                "#!lua flags=allow-oom",
                &[&all_limits, &layouts, first_lines],
                "ARGV[checks + 1]",
                &[LEDGER_ENTRY, ADJUST],
            )
        };
        let max_entries = format!("local MAX_OUTBOX_ENTRIES = {MAX_OUTBOX_ENTRIES}\n");
        let decide_batch = |first_line: &str, is_full: &str| {
            script(first_line, &[&all_limits, is_full, &max_entries], "ARGV[4]", &[APPLY, LEDGER_ENTRY, DECIDE_BATCH])
        };
        let outbox = |injected_now: &str, body: &str| {
            script("#!lua flags=allow-oom", &[], injected_now, &[LAST_ID, WRITE_STATES, body])
        };
        Self {
            decide_one: FUNCTIONS.map(decide_one),
            decide_batch: decide_batch("#!lua", NOT_FULL),
            decide_batch_full: decide_batch("#!lua flags=allow-oom", FULL),
            peek_batch: decide_batch("#!lua flags=no-writes", NOT_FULL),
            adjust: ScriptVariants {
                without_routes: adjust(WITHOUT_ROUTES),
                with_routes: adjust(WITH_ROUTES),
                with_ledger: adjust(WITH_LEDGER),
            },
            heartbeat: script("#!lua", &[], "ARGV[4]", &[HEARTBEAT]),
            read_outbox: outbox("ARGV[2]", READ_OUTBOX),
            read_states: outbox("ARGV[1]", READ_STATES),
            repair_states: outbox("ARGV[5]", REPAIR_STATES),
            rebuild_partition: outbox("ARGV[6]", REBUILD_PARTITION),
            discard_generation: outbox("ARGV[2]", DISCARD_GENERATION),
        }
    }

    /// The script for a plan of one check with this [number](LuaFunction::number).
    pub(crate) const fn decide_one(&self, algorithm: usize) -> &Script {
        &self.decide_one[algorithm - 1]
    }

    pub(crate) const fn decide_batch(&self) -> &Script {
        &self.decide_batch
    }

    pub(crate) const fn decide_batch_full(&self) -> &Script {
        &self.decide_batch_full
    }

    pub(crate) const fn peek_batch(&self) -> &Script {
        &self.peek_batch
    }

    pub(crate) const fn adjust(&self, variant: AdjustVariant) -> &Script {
        match variant {
            AdjustVariant::Plain => &self.adjust.without_routes,
            AdjustVariant::WithRoutes => &self.adjust.with_routes,
            AdjustVariant::WithLedger => &self.adjust.with_ledger,
        }
    }

    pub(crate) const fn heartbeat(&self) -> &Script {
        &self.heartbeat
    }

    pub(crate) const fn read_outbox(&self) -> &Script {
        &self.read_outbox
    }

    pub(crate) const fn read_states(&self) -> &Script {
        &self.read_states
    }

    pub(crate) const fn repair_states(&self) -> &Script {
        &self.repair_states
    }

    pub(crate) const fn rebuild_partition(&self) -> &Script {
        &self.rebuild_partition
    }

    pub(crate) const fn discard_generation(&self) -> &Script {
        &self.discard_generation
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Script> {
        let batches = [&self.decide_batch, &self.decide_batch_full, &self.peek_batch];
        let adjust = [&self.adjust.without_routes, &self.adjust.with_routes, &self.adjust.with_ledger];
        let outbox = [&self.read_outbox, &self.read_states, &self.repair_states, &self.rebuild_partition];
        let others = batches.into_iter().chain(adjust).chain(outbox).chain([&self.discard_generation, &self.heartbeat]);
        self.decide_one.iter().chain(others)
    }
}

impl Script {
    fn new(text: String) -> Self {
        Self { hash: redis::Script::new(&text).get_hash().to_owned(), text }
    }

    /// The hash that `EVALSHA` takes.
    pub(crate) fn hash(&self) -> &str {
        &self.hash
    }

    /// The command that loads the script into a server.
    pub(crate) fn load_command(&self) -> Cmd {
        let mut command = redis::cmd("SCRIPT");
        command.arg("LOAD").arg(&self.text);
        command
    }
}

/// Composes a script: `parts`, the time, and `bodies`, which use it. `injected_now` is the argument in which tests pass a time.
fn script(first_line: &str, parts: &[&str], injected_now: &str, bodies: &[&str]) -> Script {
    let now = format!("local now = {injected_now}\n");
    Script::new(lua::compose(first_line, &[parts, &[&now, TIME], bodies].concat()))
}

/// The `struct.unpack` format of `numbers` doubles.
fn layout(numbers: usize) -> String {
    format!("'<{}'", "d".repeat(numbers))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;
    use crate::args;
    use crate::args::PackedAdjustment;
    use crate::batch::{Batch, BatchMode};
    use crate::cardinality::OverflowRoute;
    use crate::outbox::LedgerPartitions;
    use crate::packed_plan::{LIMIT_BYTES, LIMIT_HEADER_BYTES, PackedPlan};
    use crate::period_clock::PackTime;
    use tidegate::limits::{Penalty, Period, Periods};
    use tidegate::spi::{Adjustment, Check, Gate, Plan, Subject};
    use tidegate::{Limit, Rate, Timestamp};

    /// The contract at the top of a script, as (label, text), with continuation lines joined.
    fn contract(text: &str) -> Vec<(String, String)> {
        let mut lines: Vec<(String, String)> = Vec::new();
        for line in text.lines().map_while(|line| line.strip_prefix("-- ")) {
            match line.split_once("  ") {
                Some((label, rest)) if !label.is_empty() => lines.push((label.into(), rest.trim().into())),
                _ => lines.last_mut().expect("the contract starts with a label").1.push_str(line.trim()),
            }
        }
        lines
    }

    /// Every `KEYS[…]` and `ARGV[…]` in the code of `text`, with the number of checks written as n.
    fn used_arguments(text: &str) -> BTreeSet<String> {
        let code = text.lines().map(|line| line.split("--").next().unwrap_or_default());
        // A local alias of KEYS counts as KEYS.
        let code = code
            .collect::<Vec<_>>()
            .join("\n")
            .replace("keys[", "KEYS[")
            .replace("#KEYS", "n")
            .replace("checks", "n")
            .replace(' ', "");
        let mut used = BTreeSet::new();
        for array in ["KEYS[", "ARGV["] {
            for (at, _) in code.match_indices(array) {
                used.extend(code[at..].split_inclusive(']').next().map(str::to_owned));
            }
        }
        used
    }

    #[test]
    fn each_contract_lists_the_keys_and_arguments_that_the_script_uses() {
        // These write states by a function that they share.
        let [repair_states, rebuild_partition] =
            [REPAIR_STATES, REBUILD_PARTITION].map(|body| body.to_owned() + WRITE_STATES);
        let bodies = [
            (DECIDE_ONE, "ARGV[3]"),
            (DECIDE_BATCH, "ARGV[4]"),
            (ADJUST, "ARGV[n+1]"),
            (HEARTBEAT, "ARGV[4]"),
            (READ_OUTBOX, "ARGV[2]"),
            (READ_STATES, "ARGV[1]"),
            (&repair_states, "ARGV[5]"),
            (&rebuild_partition, "ARGV[6]"),
            (DISCARD_GENERATION, "ARGV[2]"),
        ];
        for (body, injected_now) in bodies {
            let contract = contract(body);
            let labels: Vec<&str> = contract.iter().map(|(label, _)| label.as_str()).collect();
            assert_eq!((labels.first(), labels.last()), (Some(&"Purpose"), Some(&"Reply")), "{body}");
            let listed: BTreeSet<String> =
                labels[1..labels.len() - 1].iter().map(|label| (*label).to_owned()).collect();
            let mut used = used_arguments(body);
            used.insert(injected_now.to_owned());
            assert_eq!(listed, used, "{body}");
        }
    }

    #[test]
    fn each_contract_lists_the_fields_of_the_reply() {
        let bodies = [(DECIDE_ONE, "pack('<dc2c0'"), (ADJUST, "latest = {"), (HEARTBEAT, "return {")];
        for (body, reply) in bodies {
            let listed = contract(body).last().unwrap().1.split(';').count();
            let (_, fields) = body.rsplit_once(reply).unwrap();
            let fixed = fields.split(['}', ')']).next().unwrap().trim_start_matches(',').split(',').count();
            let appended = fields.lines().next().unwrap().matches(" .. ").count();
            let per_check = body.matches(" reply[").count();
            assert_eq!(listed, fixed + appended + per_check, "{body}");
        }
    }

    #[test]
    fn arguments_have_the_layout_that_the_scripts_unpack() {
        let rate = Rate::per_second(1).unwrap();
        let window = Duration::from_secs(60);
        let limits = [
            Limit::token_bucket(1, rate).unwrap(),
            Limit::leaky_bucket(rate, 1).unwrap(),
            Limit::fixed_window(1, window).unwrap(),
            Limit::sliding_log(1, window).unwrap(),
            Limit::sliding_window(1, window, 6).unwrap(),
            Limit::concurrency(1, window).unwrap(),
            Limit::Penalty(Penalty::new(1, window, 2, window).unwrap()),
            Limit::quota(1, Periods::utc(Period::Month)).unwrap(),
        ];
        let time = PackTime::At(Timestamp::from_micros(1_800_000_000_000_000));
        for (index, (limit, function)) in limits.into_iter().zip(FUNCTIONS).enumerate() {
            let LuaFunction { name, numbers, refund_numbers, .. } = function;
            assert_eq!((limit.algorithm().as_str(), function.number), (name, index + 1));
            assert_eq!(lua::function(&limit).name, name);
            let gate = Gate::for_rule("r", limit);
            let check = Check::new(&gate, Subject::from_hash(1), 1);
            let plan = Plan::new([check]).unwrap();
            let argument_bytes = |command: &redis::Cmd, from_the_end: usize| {
                let arguments: Vec<_> = command.args_iter().collect();
                match arguments[arguments.len() - 1 - from_the_end] {
                    redis::Arg::Simple(bytes) => bytes.len(),
                    _ => 0,
                }
            };
            let last_argument_bytes = |command: &redis::Cmd| argument_bytes(command, 0);
            let packed = PackedPlan::pack("tg", &plan, &[], &time);
            let decide_one = Batch::new([&packed]).command(None, BatchMode::Decide).0;
            assert_eq!(last_argument_bytes(&decide_one), 8 * numbers);
            let other = PackedPlan::pack("tg", &plan.clone().with_peek(), &[], &time);
            let decide_batch = Batch::new([&packed, &other]).command(None, BatchMode::Decide).0;
            assert_eq!(argument_bytes(&decide_batch, 1), LIMIT_BYTES, "both plans have the same limit");
            assert_eq!(last_argument_bytes(&decide_batch), 8, "the units of the peek");
            assert!(LIMIT_HEADER_BYTES + 8 * numbers <= LIMIT_BYTES);
            let charge = PackedAdjustment::new("tg", &Adjustment::charge(&check), OverflowRoute::default(), &time);
            let mut adjust = redis::Cmd::new();
            args::adjust(&mut adjust, [&charge].into_iter(), &LedgerPartitions::default(), None);
            assert_eq!(last_argument_bytes(&adjust), 8 * (4 + numbers + refund_numbers));
        }
    }
}
