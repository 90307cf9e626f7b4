//! The scripts: the library's limits in Lua, composed with this crate's input and output.
//!
//! Each file in `scripts/` starts with its contract: purpose, keys, arguments, reply.

use std::sync::LazyLock;

use redis::Script;
use tidegate::spi::algorithm::lua;
use tidegate::spi::{Plan, PlanMode};
use tidegate::{Algorithm, Limit};

const DECIDE_ONE: &str = include_str!("scripts/decide_one.lua");
const DECIDE_ANONYMOUS: &str = include_str!("scripts/decide_anonymous.lua");
const DECIDE: &str = include_str!("scripts/decide.lua");
const TIME: &str = include_str!("scripts/time.lua");
const ADJUST: &str = include_str!("scripts/adjust.lua");
const HEARTBEAT: &str = include_str!("scripts/heartbeat.lua");

/// The first lines of the two variants of a script: with overflow routes there is a second key for each check.
const WITHOUT_ROUTES: &str = "local ANONYMOUS, checks = false, #KEYS\n";
const WITH_ROUTES: &str = "local ANONYMOUS, checks = true, #KEYS / 2\n";

/// The limits in the order of their [algorithm numbers](algorithm_number): name, text, and how many numbers the function
/// takes after `units`.
const LIMITS: [(&str, &str, usize); 5] = [
    ("token_bucket", lua::TOKEN_BUCKET, 6),
    ("leaky_bucket", lua::LEAKY_BUCKET, 8),
    ("fixed_window", lua::FIXED_WINDOW, 4),
    ("sliding_log", lua::SLIDING_LOG, 4),
    ("sliding_window", lua::SLIDING_WINDOW, 5),
];

/// Every script of the store.
pub(crate) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(Scripts::compose);

/// Every script, with the hash that `EVALSHA` takes.
pub(crate) struct Scripts {
    /// `decide_one.lua` for each limit.
    decide_one: [Script; 5],
    /// `decide_anonymous.lua` for each limit.
    decide_anonymous: [Script; 5],
    decide: ScriptVariants,
    peek: ScriptVariants,
    adjust: ScriptVariants,
    heartbeat: Script,
}

/// A script for any number of checks, in two variants.
struct ScriptVariants {
    without_routes: Script,
    with_routes: Script,
}

impl Scripts {
    fn compose() -> Self {
        let texts: String = LIMITS.iter().map(|(_, text, _)| *text).collect();
        let names = LIMITS.map(|(name, _, _)| name).join(", ");
        let layouts = LIMITS.map(|(_, _, numbers)| layout(numbers)).join(", ");
        let all_limits = format!("{texts}local limits, layouts = {{ {names} }}, {{ {layouts} }}\n");
        let for_each_limit = |body: &str, injected_now: &str| {
            LIMITS.map(|(name, text, numbers)| {
                // The leaky bucket calls the token bucket.
                let dependency = if name == "leaky_bucket" { lua::TOKEN_BUCKET } else { "" };
                let limit = format!("local limit, layout = {name}, {}\n", layout(numbers));
                script("#!lua", &[dependency, text, &limit], injected_now, body)
            })
        };
        let variants = |first_line: &str, constants: &str, injected_now: &str, body: &str| ScriptVariants {
            without_routes: script(first_line, &[&all_limits, constants, WITHOUT_ROUTES], injected_now, body),
            with_routes: script(first_line, &[&all_limits, constants, WITH_ROUTES], injected_now, body),
        };
        Self {
            decide_one: for_each_limit(DECIDE_ONE, "ARGV[2]"),
            decide_anonymous: for_each_limit(DECIDE_ANONYMOUS, "ARGV[3]"),
            decide: variants("#!lua", "local CONSUME = true\n", "ARGV[checks + 2]", DECIDE),
            peek: variants("#!lua flags=no-writes", "local CONSUME = false\n", "ARGV[checks + 2]", DECIDE),
            adjust: variants("#!lua flags=allow-oom", "", "ARGV[checks + 1]", ADJUST),
            heartbeat: script("#!lua", &[], "ARGV[3]", HEARTBEAT),
        }
    }

    /// The script that decides `plan`, with or without overflow routes.
    pub(crate) fn decide(&self, plan: &Plan<'_>, has_routes: bool) -> &Script {
        match plan.checks() {
            [check] if is_single_check(plan) => {
                let scripts = if has_routes { &self.decide_anonymous } else { &self.decide_one };
                &scripts[algorithm_number(check.gate().limit()) - 1]
            }
            _ => self.decide.choose(has_routes),
        }
    }

    pub(crate) const fn peek(&self, has_routes: bool) -> &Script {
        self.peek.choose(has_routes)
    }

    pub(crate) const fn adjust(&self, has_overflow: bool) -> &Script {
        self.adjust.choose(has_overflow)
    }

    pub(crate) const fn heartbeat(&self) -> &Script {
        &self.heartbeat
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Script> {
        let variants = [&self.decide, &self.peek, &self.adjust].into_iter();
        self.decide_one
            .iter()
            .chain(&self.decide_anonymous)
            .chain(variants.flat_map(|script| [&script.without_routes, &script.with_routes]))
            .chain([&self.heartbeat])
    }
}

impl ScriptVariants {
    const fn choose(&self, with_routes: bool) -> &Script {
        if with_routes { &self.with_routes } else { &self.without_routes }
    }
}

/// Whether `plan` is decided by a script for a single check.
pub(crate) fn is_single_check(plan: &Plan<'_>) -> bool {
    !plan.is_peek() && plan.checks().len() == 1 && plan.max_units() == 1 && plan.mode() == PlanMode::AllOrNothing
}

/// Composes a script. `injected_now` is the argument in which tests pass a time.
fn script(first_line: &str, parts: &[&str], injected_now: &str, body: &str) -> Script {
    let now = format!("local now = {injected_now}\n");
    Script::new(&lua::compose(first_line, &[parts, &[&now, TIME, body]].concat()))
}

/// The `struct.unpack` format of `numbers` doubles.
fn layout(numbers: usize) -> String {
    format!("'<{}'", "d".repeat(numbers))
}

/// The index of a limit's algorithm in the tables of the scripts, from 1.
pub(crate) fn algorithm_number(limit: &Limit) -> usize {
    match limit.algorithm() {
        Algorithm::TokenBucket => 1,
        Algorithm::LeakyBucket => 2,
        Algorithm::FixedWindow => 3,
        Algorithm::SlidingLog => 4,
        Algorithm::SlidingWindow => 5,
        // A new variant of `Algorithm` comes together with its script.
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
        let code = code.collect::<Vec<_>>().join("\n").replace("#KEYS", "n").replace("checks", "n").replace(' ', "");
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
        let bodies = [
            (DECIDE_ONE, "ARGV[2]"),
            (DECIDE_ANONYMOUS, "ARGV[3]"),
            (DECIDE, "ARGV[n+2]"),
            (ADJUST, "ARGV[n+1]"),
            (HEARTBEAT, "ARGV[3]"),
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
        let bodies = [
            (DECIDE_ONE, "pack('<dc0'"),
            (DECIDE_ANONYMOUS, "pack('<ddc0'"),
            (DECIDE, "reply = {"),
            (ADJUST, "latest = {"),
            (HEARTBEAT, "return {"),
        ];
        for (body, reply) in bodies {
            let listed = contract(body).last().unwrap().1.split(';').count();
            let (_, fields) = body.rsplit_once(reply).unwrap();
            let fixed = fields.split(['}', ')']).next().unwrap().trim_start_matches(',').split(',').count();
            let per_check = body.matches(" reply[").count();
            assert_eq!(listed, fixed + per_check, "{body}");
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
        ];
        for (limit, (name, _, numbers)) in limits.into_iter().zip(LIMITS) {
            assert_eq!(limit.algorithm().as_str(), name);
            assert_eq!(LIMITS[algorithm_number(&limit) - 1].0, name);
            let gate = Gate::for_rule("r", limit);
            let check = Check::new(&gate, Subject::from_hash(1), 1);
            let plan = Plan::new([check]).unwrap();
            let last_arg_bytes = |append: &dyn Fn(&mut redis::Cmd)| {
                let mut command = redis::Cmd::new();
                append(&mut command);
                command
                    .args_iter()
                    .last()
                    .and_then(|arg| if let redis::Arg::Simple(bytes) = arg { Some(bytes.len()) } else { None })
            };
            assert_eq!(last_arg_bytes(&|command| args::decide_one(command, "tg", &plan, &[], None)), Some(8 * numbers));
            assert_eq!(
                last_arg_bytes(&|command| args::decide(command, "tg", &plan, &[], None)),
                Some(8 * (numbers + 2))
            );
            let charge = [Adjustment::charge(&check)];
            assert_eq!(
                last_arg_bytes(&|command| args::adjust(command, "tg", &charge, &[], None)),
                Some(8 * (numbers + 3))
            );
        }
    }
}
