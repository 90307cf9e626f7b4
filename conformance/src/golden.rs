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

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidegate::grants::{GrantError, GrantKind, Retake};
use tidegate::spi::Store;
use tidegate::{Decision, Ending, Grant, Limiter, ManualClock, Request, RuleSet, Timestamp};
use tidegate_rules::{RuleFile, parse_duration};

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

/// What the decisions of rows took, by the number of the row.
type Remains = HashMap<usize, Grant>;

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
            assert!(rule_in_file(rule).is_some(), "{}: {rule:?} is not a limit", location());
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

/// The rule `name: kind parameter=value …` in a rule file, optionally with `shadow` and, in the end, a penalty.
fn rule_in_file(text: &str) -> Option<String> {
    let (name, rest) = text.split_once(": ")?;
    let (kind, words) = rest.split_once(' ')?;
    let fields = |words: &str| words.replace("drain=", "rate=").replace(' ', ", ").replace('=', ": ");
    let (words, penalty) = match words.split_once(" after=") {
        Some((words, penalty)) => (words, format!(", security: true, penalty: {{ after: {} }}", fields(penalty))),
        None => (words, String::new()),
    };
    let (words, mode) = words.strip_suffix(" shadow").map_or((words, ""), |words| (words, ", mode: shadow"));
    // Rows show the results of all checks, of which a known denial has one.
    let options = format!("denial_cache: false{mode}{penalty}");
    Some(format!("- {{ id: {name}, per: [tenant], {kind}: {{ {} }}, {options} }}\n", fields(words)))
}

/// Parses a time since the start, or a date.
fn parse_time(text: &str) -> Option<Timestamp> {
    if let Ok(instant) = text.parse::<jiff::Timestamp>() {
        return Some(Timestamp::from_micros(u64::try_from(instant.as_microsecond()).ok()?));
    }
    Some(Timestamp::from_micros(START).plus(parse_duration(text).ok()?))
}

impl GoldenHistory {
    pub async fn replay(&self, clock: &ManualClock, store: impl Store, user: &str) {
        let mut limiter = Limiter::new(self.rule_set(&[]), Arc::new(store));
        let (mut changes, mut remains) = (Vec::new(), Remains::default());
        for (number, row) in self.rows.iter().enumerate() {
            clock.set(parse_time(row.cell("at")).unwrap_or_else(|| panic!("{}: no time", row.line)));
            if let Some(change) = row.cell("ask").strip_prefix("change ").and_then(|words| words.split_once(" to ")) {
                changes.retain(|(changed, _)| *changed != change.0);
                changes.push(change);
                limiter = limiter.with_rules(self.rule_set(&changes));
                continue;
            }
            match row.ask(&limiter, user, &mut remains).await {
                Err(answer) => assert_eq!(row.cell("answer"), answer, "{}, line {}", self.location, row.line),
                Ok(mut decision) => {
                    row.compare(&decision, &self.location);
                    remains.insert(number + 1, decision.take_grant());
                }
            }
        }
    }

    /// The rules, with other values of these parameters.
    fn rule_set(&self, changes: &[(&str, &str)]) -> RuleSet {
        let rule = |line: &String| {
            let words = line.split(' ').map(|word| {
                let changed =
                    changes.iter().find(|(name, _)| word.split_once('=').is_some_and(|(old, _)| old == *name));
                changed.map_or(word.to_owned(), |(name, value)| format!("{name}={value}"))
            });
            rule_in_file(&words.collect::<Vec<_>>().join(" ")).unwrap()
        };
        let text = format!("version: 1\nrules:\n{}", self.rules.iter().map(rule).collect::<String>());
        RuleFile::parse(&self.location, &text).unwrap_or_else(|report| panic!("{report}")).rules().clone()
    }
}

impl Row {
    fn cell(&self, name: &str) -> &str {
        self.cells.get(name).map_or("", String::as_str)
    }

    /// Carries out the row. The error is the answer to a row that no decision answers. What ends leases and reservations is another
    /// process, which has only their bytes.
    async fn ask<S: Store>(
        &self,
        limiter: &Limiter<S>,
        user: &str,
        remains: &mut Remains,
    ) -> Result<Decision, &'static str> {
        let words: Vec<&str> = self.cell("ask").split(' ').collect();
        let number = |word: &str| word.parse::<u64>().unwrap_or_else(|_| panic!("line {}: {words:?}", self.line));
        let request = |cost: &str| Request::new("").with_attribute("tenant", user).with_cost(number(cost));
        let row = |word: &str| number(word) as usize;
        match words[..] {
            ["take", cost] => return Ok(limiter.check(&request(cost)).await.unwrap()),
            ["take", "up", "to", most] => {
                return Ok(limiter.take_up_to(&request("1"), number(most)).await.unwrap());
            }
            ["peek", cost] => return Ok(limiter.peek(&request(cost)).await.unwrap()),
            ["reserve", cost, ref key @ ..] => {
                return limiter.reserve(&request(cost), key.get(1).copied()).await.map_err(|error| self.end(&error));
            }
            ["charge", cost] => limiter.charge(&request(cost)).await.unwrap(),
            ["forget", ..] => limiter.forget(&request("1")).await.unwrap(),
            ["refund", "row", of] => {
                limiter.end(&mut remains.remove(&row(of)).unwrap(), &Ending::Refund).await.unwrap();
            }
            ["settle", "row", of, "to", cost] => {
                let settle = Ending::Settle(number(cost).into());
                limiter.end(&mut remains.remove(&row(of)).unwrap(), &settle).await.unwrap();
            }
            ["commit", "row", of, "at", cost] => {
                let commit = Ending::Commit(number(cost).into());
                let result = limiter.end(&mut copy_of(&remains[&row(of)]), &commit).await;
                return Err(result.map_or_else(|error| self.end(&error), |()| "committed"));
            }
            [ref verb @ .., "row", of] => {
                let grant = &remains[&row(of)];
                let result = match verb {
                    ["renew"] => limiter.renew(grant, Retake::No).await,
                    ["renew", "or", "retake"] => limiter.renew(grant, Retake::IfLost).await,
                    _ => limiter.end(&mut copy_of(grant), &Ending::Release).await,
                };
                let is_lease = grant.parts().iter().all(|part| part.kind() != GrantKind::Held);
                return Err(match result {
                    Ok(()) if verb == ["release"] => "released",
                    Ok(()) => "held",
                    Err(GrantError::NotHeld) if is_lease => "not held",
                    Err(error) => self.end(&error),
                });
            }
            _ => panic!("line {}: {words:?} is not a known request", self.line),
        }
        Err("")
    }

    fn end(&self, error: &GrantError) -> &'static str {
        match error {
            GrantError::NotHeld => "not found",
            GrantError::AlreadyEnded => "already ended",
            GrantError::KeyReused => "key reused",
            error => panic!("line {}: {error}", self.line),
        }
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
            let expected = parse_duration(expected).map_or(expected.into(), |span| format_duration(Some(span)));
            assert!(
                expected.is_empty() || expected == got,
                "{location}, line {}: {name} is {got}, not {expected}",
                self.line
            );
        }
    }
}

/// The grant as another process gets it.
fn copy_of(grant: &Grant) -> Grant {
    Grant::from_bytes(&grant.to_bytes()).unwrap()
}

fn format_duration(span: Option<Duration>) -> String {
    span.map_or_else(String::new, |span| format!("{span:?}"))
}
