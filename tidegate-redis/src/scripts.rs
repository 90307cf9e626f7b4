//! The scripts: the library's limits in Lua, composed with this crate's input and output.
//!
//! Each file in `scripts/` starts with its contract: purpose, keys, arguments, reply.

use std::sync::LazyLock;

use redis::Script;
use tidegate::algorithm::lua;
use tidegate::{Algorithm, Limit, Plan, PlanMode};

const DECIDE_ONE: &str = include_str!("scripts/decide_one.lua");
const DECIDE: &str = include_str!("scripts/decide.lua");
const TIME: &str = include_str!("scripts/time.lua");
const ADJUST: &str = include_str!("scripts/adjust.lua");
const BEAT: &str = include_str!("scripts/beat.lua");

/// Every script of the store.
pub(crate) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(Scripts::compose);

/// The text of every script, by the hash that `EVALSHA` takes.
pub(crate) struct Scripts {
    one: [Script; 5],
    decide: Script,
    peek: Script,
    adjust: Script,
    beat: Script,
}

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
        Self {
            one: LIMITS.map(|(name, text, numbers)| {
                // The leaky bucket is a token bucket too.
                let needed = if name == "leaky_bucket" { lua::TOKEN_BUCKET } else { "" };
                let choice = format!("local limit, layout = {name}, {}\n", layout(numbers));
                script("#!lua", &[needed, text, &choice], "ARGV[2]", DECIDE_ONE)
            }),
            decide: script("#!lua", &[&all, "local CONSUME = true\n"], "ARGV[#KEYS + 2]", DECIDE),
            peek: script("#!lua flags=no-writes", &[&all, "local CONSUME = false\n"], "ARGV[#KEYS + 2]", DECIDE),
            adjust: script("#!lua flags=allow-oom", &[&all], "ARGV[#KEYS + 1]", ADJUST),
            beat: script("#!lua", &[], "ARGV[3]", BEAT),
        }
    }

    /// The script that decides `plan`, and whether it is one for a single check.
    pub(crate) fn decide(&self, plan: &Plan<'_>) -> (&Script, bool) {
        match plan.checks() {
            [only] if plan.units() == 1 && plan.plan_mode() == PlanMode::AllOrNothing => {
                (&self.one[kind(only.gate().limit()) - 1], true)
            }
            _ => (&self.decide, false),
        }
    }

    pub(crate) const fn peek(&self) -> &Script {
        &self.peek
    }

    pub(crate) const fn adjust(&self) -> &Script {
        &self.adjust
    }

    pub(crate) const fn beat(&self) -> &Script {
        &self.beat
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Script> {
        self.one.iter().chain([&self.decide, &self.peek, &self.adjust, &self.beat])
    }
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
    use tidegate::{Adjustment, Check, Gate, Rate, Subject};

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
        for (body, injected) in
            [(DECIDE_ONE, "ARGV[2]"), (DECIDE, "ARGV[n+2]"), (ADJUST, "ARGV[n+1]"), (BEAT, "ARGV[3]")]
        {
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
        let replies = [(DECIDE_ONE, "pack('<dc0'"), (DECIDE, "reply = {"), (ADJUST, "return {"), (BEAT, "return {")];
        for (body, reply) in replies {
            let told = contract(body).last().unwrap().1.split(';').count();
            let (_, fields) = body.rsplit_once(reply).unwrap();
            let fixed = fields.split(['}', ')']).next().unwrap().trim_start_matches(',').split(',').count();
            let per_check = usize::from(body.contains("reply[i + 3]"));
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
            assert_eq!(last(&|command| args::decide_one(command, "tg", &plan, None)), Some(8 * numbers));
            assert_eq!(last(&|command| args::decide(command, "tg", &plan, None)), Some(8 * (numbers + 2)));
            let charge = [Adjustment::charge(&check)];
            assert_eq!(last(&|command| args::adjust(command, "tg", &charge, None)), Some(8 * (numbers + 2)));
        }
    }
}
