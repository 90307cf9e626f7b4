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

/// Every script of the store.
pub(crate) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(Scripts::compose);

/// The text of every script, by the hash that `EVALSHA` takes.
pub(crate) struct Scripts {
    one: [Script; 5],
    decide: Script,
    peek: Script,
    adjust: Script,
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

    pub(crate) fn all(&self) -> impl Iterator<Item = &Script> {
        self.one.iter().chain([&self.decide, &self.peek, &self.adjust])
    }
}

/// A script: what it is made of, the argument that may hold an injected now, and its body.
fn script(first_line: &str, parts: &[&str], injected: &str, body: &str) -> Script {
    let (ops, parts) = (lua::OPS, parts.concat());
    Script::new(&format!("{first_line}\n{ops}{parts}local now = tonumber({injected})\n{TIME}{body}"))
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
