//! `GoldenHistory`: the tables in `spec/*.md`, which every store replays.
//!
//! Each table is the history of one subject, starting fresh at 0 s. The indented lines before it define the limits that
//! every request must pass:
//!
//! ```text
//!     api: token_bucket capacity=3 refill=1/1s
//!
//! | at | ask | answer | remaining | retry | reset | delay |
//! ```
//!
//! A time is that since the start of the table, or a date with its offset from UTC: `2027-03-28T00:00+01:00`.
//!
//! An empty cell is not compared. With several limits, the answer names the rule that denies, and the other columns describe
//! the check that the decision shows.

mod reservations;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidegate::spi::Store;
use tidegate::{
    Decision, Lease, LeaseError, Limit, Limiter, ManualClock, Penalty, Periods, Rate, Receipt, Request, Rule, RuleSet,
    Timestamp, Window,
};

use reservations::Reservations;

/// 2027-01-15 08:00:00 UTC: the start of a minute, of ten minutes and of an hour.
const START: u64 = 1_800_000_000_000_000;

/// One table of a page.
#[derive(Clone, Debug)]
pub struct GoldenHistory {
    /// File and line of the table.
    pub location: String,
    /// The lines that define the limits.
    rules: Vec<String>,
    rows: Vec<Row>,
}

#[derive(Clone, Debug)]
struct Row {
    line: usize,
    cells: HashMap<String, String>,
}

/// Reads the golden histories of every page in `spec/`.
pub fn golden_histories() -> Vec<GoldenHistory> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../spec");
    let mut pages: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    pages.iter().flat_map(|page| parse_page(page)).collect()
}

fn parse_page(page: &Path) -> Vec<GoldenHistory> {
    let file = page.file_name().unwrap().to_string_lossy();
    let text = std::fs::read_to_string(page).unwrap();
    let (mut golden_histories, mut rules, mut header) = (Vec::new(), Vec::new(), Vec::new());
    for (number, line) in text.lines().enumerate() {
        let location = || format!("spec/{file}:{}", number + 1);
        if let Some(rule) = line.strip_prefix("    ") {
            assert!(parse_rule(rule).is_some(), "{}: {rule:?} is not a limit", location());
            rules.push(rule.to_owned());
        } else if let Some(row) = line.strip_prefix('|') {
            let cells = row.trim_end_matches('|').split('|').map(|cell| cell.trim().to_owned());
            if header.is_empty() {
                header = cells.collect();
                let rules = std::mem::take(&mut rules);
                golden_histories.push(GoldenHistory { location: location(), rules, rows: Vec::new() });
            } else if !row.starts_with("--") {
                let cells = header.iter().cloned().zip(cells).collect();
                golden_histories.last_mut().unwrap().rows.push(Row { line: number + 1, cells });
            }
        } else {
            header.clear();
        }
    }
    golden_histories
}

/// Parses `name: kind parameter=value …`, optionally with a penalty, `cost=` and `shadow`.
fn parse_rule(text: &str) -> Option<Rule> {
    let (name, rest) = text.split_once(": ")?;
    let mut words = rest.split_whitespace();
    let kind = words.next()?;
    let words: Vec<&str> = words.collect();
    let value = |name: &str| words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    let number = |name: &str| value(name)?.parse::<u64>().ok();
    let rate = |name: &str| {
        let (amount, period) = value(name)?.split_once('/')?;
        Rate::new(amount.parse().ok()?, parse_duration(period)?).ok()
    };
    let window = || parse_duration(value("window")?);
    let fixed_window = || match value("window")? {
        "month" => Some(Window::MONTH),
        "year" => Some(Window::YEAR),
        text => parse_duration(text).map(Window::from),
    };
    let limit = match kind {
        "token_bucket" => Limit::token_bucket(number("capacity")?, rate("refill")?),
        "leaky_bucket" => Limit::leaky_bucket(rate("drain")?, number("queue")?),
        "fixed_window" => Limit::fixed_window(number("limit")?, fixed_window()?),
        "sliding_log" => Limit::sliding_log(number("limit")?, window()?),
        "sliding_window" => Limit::sliding_window(number("limit")?, window()?, number("slices")?),
        "quota" => {
            let anchor = value("anchor").map(|anchor| anchor.parse().unwrap());
            let periods = Periods::new(value("period")?.parse().ok()?, value("timezone")?, anchor).ok()?;
            Limit::quota_with_grace(number("amount")?, number("grace").unwrap_or(0), periods)
        }
        "concurrency" => Limit::concurrency(number("max")?, parse_duration(value("lease")?)?),
        _ => return None,
    };
    // Rows show the results of all checks, of which a known denial has one.
    let mut rule = Rule::new(name, limit.ok()?).with_per(["user"]).with_denial_cache(false);
    if let Some(after) = number("after") {
        let span = |name: &str| parse_duration(value(name)?);
        let penalty = Penalty::new(after, span("block")?, number("factor")?, span("max")?);
        rule = rule.with_security().with_penalty(penalty.ok()?);
    }
    if let Some(cost) = number("cost") {
        rule = rule.with_cost(cost);
    }
    if words.contains(&"shadow") {
        rule = rule.with_mode(tidegate::RuleMode::Shadow);
    }
    Some(rule)
}

/// Parses a time since the start, or a date.
fn parse_time(text: &str) -> Option<Timestamp> {
    if let Ok(instant) = text.parse::<jiff::Timestamp>() {
        return Some(Timestamp::from_micros(u64::try_from(instant.as_microsecond()).ok()?));
    }
    Some(Timestamp::from_micros(START).plus(parse_duration(text)?))
}

/// Parses `1m30s`, `2.5s`, `100ms`, `7us`, `0s`.
fn parse_duration(text: &str) -> Option<Duration> {
    let mut total = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let unit = rest[digits..].find(|c: char| c.is_ascii_digit()).map_or(rest.len(), |next| digits + next);
        let micros = match &rest[digits..unit] {
            "us" => 1,
            "ms" => 1_000,
            "s" => 1_000_000,
            "m" => 60_000_000,
            "h" => 3_600_000_000,
            "d" => 86_400_000_000,
            _ => return None,
        };
        let (whole, part) = rest[..digits].split_once('.').unwrap_or((&rest[..digits], "0"));
        let share = part.parse::<u64>().ok()? * micros / 10_u64.pow(u32::try_from(part.len()).ok()?);
        total += whole.parse::<u64>().ok()? * micros + share;
        rest = &rest[unit..];
    }
    Some(Duration::from_micros(total))
}

impl GoldenHistory {
    /// Replays the history on a store that runs on `clock`, and compares every cell.
    pub async fn replay(&self, clock: &ManualClock, store: impl Store, user: &str) {
        let mut limiter = Limiter::new(self.rule_set(&[]), Arc::new(store));
        let mut changes = Vec::new();
        let mut receipts: HashMap<usize, (Receipt, Option<Lease>)> = HashMap::new();
        let mut reservations = Reservations::new();
        for (number, row) in self.rows.iter().enumerate() {
            clock.set(parse_time(row.cell("at")).unwrap_or_else(|| panic!("{}: no time", row.line)));
            if let Some((name, value)) = row.change() {
                changes.retain(|(changed, _)| *changed != name);
                changes.push((name, value));
                limiter = limiter.with_rules(self.rule_set(&changes));
                continue;
            }
            if row.cell("ask").starts_with("reserve ") {
                if let Some(decision) = row.reserve(&limiter, user).await {
                    row.compare(&decision, &self.location);
                    decision.reservation().map(|reservation| reservations.insert(number + 1, reservation));
                }
                continue;
            }
            if row.end_reservation(&limiter, &reservations).await {
                continue;
            }
            if let Some(decision) = row.ask(&limiter, user, &mut receipts).await {
                row.compare(&decision, &self.location);
                let lease = decision.lease();
                receipts.insert(number + 1, (decision.into_receipt(), lease));
            }
        }
    }
}

impl GoldenHistory {
    /// The rules, with other values of these parameters.
    fn rule_set(&self, changes: &[(&str, &str)]) -> RuleSet {
        let rule = |line: &String| {
            let words = line.split(' ').map(|word| {
                let changed =
                    changes.iter().find(|(name, _)| word.split_once('=').is_some_and(|(old, _)| old == *name));
                changed.map_or(word.to_owned(), |(name, value)| format!("{name}={value}"))
            });
            parse_rule(&words.collect::<Vec<_>>().join(" ")).unwrap()
        };
        RuleSet::new(self.rules.iter().map(rule)).unwrap()
    }
}

impl Row {
    fn cell(&self, name: &str) -> &str {
        self.cells.get(name).map_or("", String::as_str)
    }

    /// The parameter that `change NAME to VALUE` changes.
    fn change(&self) -> Option<(&str, &str)> {
        self.cell("ask").strip_prefix("change ")?.split_once(" to ")
    }

    async fn ask<S: Store>(
        &self,
        limiter: &Limiter<S>,
        user: &str,
        receipts: &mut HashMap<usize, (Receipt, Option<Lease>)>,
    ) -> Option<Decision> {
        let ask = self.cell("ask");
        let (verb, amount) = ask.rsplit_once(' ').unwrap_or((ask, "1"));
        let number = amount.trim_start_matches('#').parse().unwrap_or_else(|_| panic!("line {}: {ask:?}", self.line));
        let request = Request::new("").with_attribute("user", user).with_cost(number);
        match verb {
            "take" => return Some(limiter.check(&request).await.unwrap()),
            "peek" => return Some(limiter.peek(&request).await.unwrap()),
            "take up to" => return Some(limiter.take_up_to(&request.with_cost(1), number).await.unwrap()),
            "charge" => limiter.charge(&request).await.unwrap(),
            "refund row" => limiter.refund(receipts.remove(&(number as usize)).unwrap().0).await.unwrap(),
            "renew row" | "renew or retake row" | "release row" => {
                let lease = receipts.get_mut(&(number as usize)).unwrap().1.take().unwrap();
                let result = match verb {
                    "renew row" => limiter.renew(&lease).await,
                    "renew or retake row" => limiter.renew_or_retake(&lease).await,
                    _ => limiter.release(copy_of(&lease, limiter.rules())).await,
                };
                receipts.get_mut(&(number as usize)).unwrap().1 = Some(lease);
                let answer = match result {
                    Ok(()) if verb == "release row" => "released",
                    Ok(()) => "held",
                    Err(LeaseError::NotHeld) => "not held",
                    Err(error) => panic!("line {}: {error}", self.line),
                };
                assert_eq!(self.cell("answer"), answer, "line {}", self.line);
            }
            _ if verb.starts_with("settle row ") && verb.ends_with(" to") => {
                let row = verb.trim_start_matches("settle row ").trim_end_matches(" to");
                let receipt = receipts.remove(&row.parse().unwrap()).unwrap().0;
                limiter.settle(receipt, |_| Some(number)).await.unwrap();
            }
            "forget" => limiter.forget(&request).await.unwrap(),
            _ => panic!("line {}: {ask:?} is not a known request", self.line),
        }
        None
    }

    fn compare(&self, decision: &Decision, location: &str) {
        let shown = decision.most_restrictive();
        let answer = match (decision.is_allowed(), decision.granted(), decision.rule()) {
            (true, 1, _) if decision.is_in_grace() => "allowed in grace".to_owned(),
            (true, 1, _) => "allowed".to_owned(),
            (true, granted, _) => format!("{granted} granted"),
            (false, _, rule) if decision.checks().len() > 1 => format!("denied by {}", rule.unwrap_or_default()),
            (false, ..) => "denied".to_owned(),
        };
        let reset = shown.map(|shown| shown.outcome().reset_after);
        let shadow: Vec<&str> = decision.shadow_would_reject().collect();
        let retry = if decision.is_permanent() { "never".into() } else { format_duration(decision.retry_after()) };
        for (name, got) in [
            ("answer", answer),
            ("remaining", decision.remaining().map_or_else(String::new, |remaining| remaining.to_string())),
            ("retry", retry),
            ("reset", format_duration(reset)),
            ("delay", format_duration(Some(decision.delay()))),
            ("shadow", shadow.join(", ")),
        ] {
            let expected = self.cell(name);
            let expected = parse_duration(expected)
                .filter(|_| !expected.is_empty())
                .map_or(expected.into(), |s| format_duration(Some(s)));
            assert!(
                expected.is_empty() || expected == got,
                "{location}, line {}: {name} is {got}, not {expected}",
                self.line
            );
        }
    }
}

/// The lease as another process gets it.
fn copy_of(lease: &Lease, rules: &RuleSet) -> Lease {
    let receipt = Receipt::from_bytes(&lease.stored().to_bytes()).unwrap();
    Lease::from_stored(receipt, rules).unwrap()
}

fn format_duration(span: Option<Duration>) -> String {
    span.map_or_else(String::new, |span| format!("{span:?}"))
}
