//! The scripts: the library's limits in Lua, composed with this crate's input and output.
//!
//! Each file in `scripts/` starts with its contract: purpose, keys, arguments, reply.

use std::sync::LazyLock;

use redis::Script;
use tidegate::spi::algorithm::lua;
use tidegate::spi::{Plan, PlanMode};
use tidegate::{Algorithm, Limit};

const DECIDE_ONE: &str = include_str!("scripts/decide_one.lua");
const DECIDE_STRANGER: &str = include_str!("scripts/decide_stranger.lua");
const DECIDE: &str = include_str!("scripts/decide.lua");
const TIME: &str = include_str!("scripts/time.lua");
const ADJUST: &str = include_str!("scripts/adjust.lua");
const BEAT: &str = include_str!("scripts/beat.lua");

/// Every script of the store.
pub(crate) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(Scripts::compose);

/// The text of every script, by the hash that `EVALSHA` takes.
pub(crate) struct Scripts {
    one: [Script; 5],
    stranger: [Script; 5],
    decide: Among,
    peek: Among,
    adjust: Among,
    beat: Script,
}

/// A script for any number of checks, and the same for when strangers among them are treated in another way.
struct Among {
    usual: Script,
    strangers: Script,
}

/// The keys: one for each check; or, if strangers are treated in another way, one more for each.
const USUAL: &str = "local STRANGERS, checks = false, #KEYS\n";
const STRANGERS: &str = "local STRANGERS, checks = true, #KEYS / 2\n";

/// The limits, in the order of their kinds: name, text, and the numbers that it takes after `units`.
const LIMITS: [(&str, &str, usize); 5] = [
    ("token_bucket", lua::TOKEN_BUCKET, 6),
    ("leaky_bucket", lua::LEAKY_BUCKET, 8),
    ("fixed_window", lua::FIXED_WINDOW, 4),
    ("sliding_log", lua::SLIDING_LOG, 4),
    ("sliding_window", lua::SLIDING_WINDOW, 5),
];

impl Scripts {
    fn compose() -> Self {
        let texts: String = LIMITS.iter().map(|(_, text, _)| *text).collect();
        let names = LIMITS.map(|(name, _, _)| name).join(", ");
        let layouts = LIMITS.map(|(_, _, numbers)| layout(numbers)).join(", ");
        let all = format!("{texts}local limits, layouts = {{ {names} }}, {{ {layouts} }}\n");
        let one = |body: &str, injected: &str| {
            LIMITS.map(|(name, text, numbers)| {
                // The leaky bucket is a token bucket too.
                let needed = if name == "leaky_bucket" { lua::TOKEN_BUCKET } else { "" };
                let choice = format!("local limit, layout = {name}, {}\n", layout(numbers));
                script("#!lua", &[needed, text, &choice], injected, body)
            })
        };
        let among = |first_line: &str, constants: &str, injected: &str, body: &str| Among {
            usual: script(first_line, &[&all, constants, USUAL], injected, body),
            strangers: script(first_line, &[&all, constants, STRANGERS], injected, body),
        };
        Self {
            one: one(DECIDE_ONE, "ARGV[2]"),
            stranger: one(DECIDE_STRANGER, "ARGV[3]"),
            decide: among("#!lua", "local CONSUME = true\n", "ARGV[checks + 2]", DECIDE),
            peek: among("#!lua flags=no-writes", "local CONSUME = false\n", "ARGV[checks + 2]", DECIDE),
            adjust: among("#!lua flags=allow-oom", "", "ARGV[checks + 1]", ADJUST),
            beat: script("#!lua", &[], "ARGV[3]", BEAT),
        }
    }

    /// The script that decides `plan`, by whether `strangers` in it are treated in another way.
    pub(crate) fn decide(&self, plan: &Plan<'_>, strangers: bool) -> &Script {
        match plan.checks() {
            [only] if is_single(plan) => {
                let scripts = if strangers { &self.stranger } else { &self.one };
                &scripts[kind(only.gate().limit()) - 1]
            }
            _ => self.decide.choose(strangers),
        }
    }

    pub(crate) const fn peek(&self, strangers: bool) -> &Script {
        self.peek.choose(strangers)
    }

    pub(crate) const fn adjust(&self, strangers: bool) -> &Script {
        self.adjust.choose(strangers)
    }

    pub(crate) const fn beat(&self) -> &Script {
        &self.beat
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Script> {
        let among = [&self.decide, &self.peek, &self.adjust].into_iter();
        self.one
            .iter()
            .chain(&self.stranger)
            .chain(among.flat_map(|script| [&script.usual, &script.strangers]))
            .chain([&self.beat])
    }
}

impl Among {
    const fn choose(&self, strangers: bool) -> &Script {
        if strangers { &self.strangers } else { &self.usual }
    }
}

/// Whether `plan` is decided by a script for a single check.
pub(crate) fn is_single(plan: &Plan<'_>) -> bool {
    plan.checks().len() == 1 && plan.units() == 1 && plan.plan_mode() == PlanMode::AllOrNothing
}

/// A script: what it is made of, the argument that may hold an injected now, and its body.
fn script(first_line: &str, parts: &[&str], injected: &str, body: &str) -> Script {
    let now = format!("local now = {injected}\n");
    Script::new(&lua::compose(first_line, &[parts, &[&now, TIME, body]].concat()))
}

fn layout(numbers: usize) -> String {
    format!("'<{}'", "d".repeat(numbers))
}

/// The place of a limit in the tables of the scripts, from 1.
pub(crate) fn kind(limit: &Limit) -> usize {
    match limit.algorithm() {
        Algorithm::TokenBucket => 1,
        Algorithm::LeakyBucket => 2,
        Algorithm::FixedWindow => 3,
        Algorithm::SlidingLog => 4,
        Algorithm::SlidingWindow => 5,
        // `Algorithm` may grow, but only together with a script that knows the new kind.
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;
    use crate::args;
    use tidegate::Rate;
    use tidegate::spi::{Adjustment, Check, Gate, Subject};

    /// The contract in the first lines of a script, as (label, text), continuation lines joined.
    fn contract(text: &str) -> Vec<(String, String)> {
        let mut lines: Vec<(String, String)> = Vec::new();
        for line in text.lines().map_while(|line| line.strip_prefix("-- ")) {
            match line.split_once("  ") {
                Some((label, rest)) if !label.is_empty() => lines.push((label.into(), rest.trim().into())),
                _ => lines.last_mut().expect("a label first").1.push_str(line.trim()),
            }
        }
        lines
    }

    /// Every `KEYS[…]` and `ARGV[…]` in `text`, with the number of keys written as n.
    fn uses(text: &str) -> BTreeSet<String> {
        let code = text.lines().map(|line| line.split("--").next().unwrap_or_default());
        let code = code.collect::<Vec<_>>().join("\n").replace("#KEYS", "n").replace("checks", "n").replace(' ', "");
        let mut found = BTreeSet::new();
        for array in ["KEYS[", "ARGV["] {
            for (at, _) in code.match_indices(array) {
                found.extend(code[at..].split_inclusive(']').next().map(str::to_owned));
            }
        }
        found
    }

    #[test]
    fn each_contract_tells_the_keys_and_arguments_that_are_used() {
        let bodies = [
            (DECIDE_ONE, "ARGV[2]"),
            (DECIDE_STRANGER, "ARGV[3]"),
            (DECIDE, "ARGV[n+2]"),
            (ADJUST, "ARGV[n+1]"),
            (BEAT, "ARGV[3]"),
        ];
        for (body, injected) in bodies {
            let contract = contract(body);
            let labels: Vec<&str> = contract.iter().map(|(label, _)| label.as_str()).collect();
            assert_eq!((labels.first(), labels.last()), (Some(&"Purpose"), Some(&"Reply")), "{body}");
            let told: BTreeSet<String> = labels[1..labels.len() - 1].iter().map(|label| (*label).to_owned()).collect();
            let mut used = uses(body);
            used.insert(injected.to_owned());
            assert_eq!(told, used, "{body}");
        }
    }

    #[test]
    fn each_contract_tells_the_fields_of_the_reply() {
        let bodies = [
            (DECIDE_ONE, "pack('<dc0'"),
            (DECIDE_STRANGER, "pack('<ddc0'"),
            (DECIDE, "reply = {"),
            (ADJUST, "latest = {"),
            (BEAT, "return {"),
        ];
        for (body, reply) in bodies {
            let told = contract(body).last().unwrap().1.split(';').count();
            let (_, fields) = body.rsplit_once(reply).unwrap();
            let fixed = fields.split(['}', ')']).next().unwrap().trim_start_matches(',').split(',').count();
            let per_check = body.matches(" reply[").count();
            assert_eq!(told, fixed + per_check, "{body}");
        }
    }

    #[test]
    fn what_is_sent_has_the_layout_that_the_scripts_unpack() {
        let rate = Rate::per_second(1).unwrap();
        let window = Duration::from_secs(60);
        let limits = [
            Limit::token_bucket(1, rate).unwrap(),
            Limit::leaky_bucket(rate, 1).unwrap(),
            Limit::fixed_window(1, window).unwrap(),
            Limit::sliding_log(1, window).unwrap(),
            Limit::sliding_window(1, window, 6).unwrap(),
        ];
        for (limit, (name, _, numbers)) in limits.into_iter().zip(LIMITS) {
            assert_eq!(limit.algorithm().as_str(), name);
            assert_eq!(LIMITS[kind(&limit) - 1].0, name);
            let gate = Gate::of_rule("r", limit);
            let check = Check::of(&gate, Subject::from_hash(1), 1);
            let plan = Plan::new([check]).unwrap();
            let last = |append: &dyn Fn(&mut redis::Cmd)| {
                let mut command = redis::Cmd::new();
                append(&mut command);
                command
                    .args_iter()
                    .last()
                    .and_then(|arg| if let redis::Arg::Simple(bytes) = arg { Some(bytes.len()) } else { None })
            };
            assert_eq!(last(&|command| args::decide_one(command, "tg", &plan, &[], None)), Some(8 * numbers));
            assert_eq!(last(&|command| args::decide(command, "tg", &plan, &[], None)), Some(8 * (numbers + 2)));
            let charge = [Adjustment::charge(&check)];
            assert_eq!(last(&|command| args::adjust(command, "tg", &charge, &[], None)), Some(8 * (numbers + 3)));
        }
    }
}
