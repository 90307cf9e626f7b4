//! The scenario: the requests, and the result of each kind of limit.

use std::error::Error;
use std::time::Duration;

use tidegate::{Limit, Limiter, ManualClock, MemoryStore, Rate, Request, Rule, RuleSet, Timestamp};

const SECOND: Duration = Duration::from_secs(1);

/// The phases: name, start in milliseconds, number of requests, and the distance between them.
///
/// The last two are on either side of a whole second, where the next fixed window begins.
pub(crate) const PHASES: [(&str, u64, u64, u64); 4] =
    [("40 at once", 0, 40, 0), ("20 a second for 1.5 s", 1200, 30, 50), ("20", 3900, 20, 0), ("+20", 4000, 20, 0)];

/// One kind of limit, and the times at which requests passed, were delayed or were denied.
pub(crate) struct Lane {
    pub(crate) limit: &'static str,
    pub(crate) meaning: &'static str,
    pub(crate) passed: Vec<Duration>,
    pub(crate) held: Vec<Duration>,
    pub(crate) denied: Vec<Duration>,
    pub(crate) first_retry: Option<Duration>,
}

impl Lane {
    /// The largest number of requests that passed within one second.
    pub(crate) fn busiest_second(&self) -> usize {
        let through = || self.passed.iter().chain(&self.held);
        let second_from = |start: Duration| through().filter(|at| (start..start + SECOND).contains(at)).count();
        through().map(|start| second_from(*start)).max().unwrap_or(0)
    }
}

/// The times at which requests are sent.
pub(crate) fn sent() -> Vec<Duration> {
    let moments = |(_, start, requests, apart)| (0..requests).map(move |number| start + number * apart);
    PHASES.into_iter().flat_map(moments).map(Duration::from_millis).collect()
}

/// Sends the same requests through each kind of limit.
pub(crate) fn lanes(sent: &[Duration]) -> Result<Vec<Lane>, Box<dyn Error>> {
    let ten = Rate::per_second(10)?;
    let limits = [
        ("burst 10, then 10/s", Limit::token_bucket(10, ten)?),
        ("1 per 0.1 s, 9 wait", Limit::leaky_bucket(ten, 9)?),
        ("10 in each second", Limit::fixed_window(10, SECOND)?),
        ("10 in any second", Limit::sliding_log(10, SECOND)?),
        ("the same, estimated", Limit::sliding_window(10, SECOND, 5)?),
    ];
    limits.into_iter().map(|(meaning, limit)| lane(meaning, limit, sent)).collect()
}

fn lane(meaning: &'static str, limit: Limit, sent: &[Duration]) -> Result<Lane, Box<dyn Error>> {
    // A whole second, so that the fixed windows are aligned with the scenario.
    let start = Timestamp::from_micros(1_700_000_000_000_000);
    let clock = ManualClock::starting_at(start);
    let rules = RuleSet::new([Rule::new("api", limit).with_per(["user"])])?;
    let limiter = Limiter::new(rules, MemoryStore::new().with_clock(clock.clone()));
    let request = Request::new("read").with_attribute("user", "ann");

    let (mut passed, mut held, mut denied, mut first_retry) = (vec![], vec![], vec![], None);
    for at in sent {
        clock.set(start.plus(*at));
        let decision = limiter.check_now(&request);
        if !decision.is_allowed() {
            denied.push(*at);
            first_retry = first_retry.or(decision.retry_after());
        } else if decision.delay().is_zero() {
            passed.push(*at);
        } else {
            held.push(*at + decision.delay());
        }
    }
    Ok(Lane { limit: limit.algorithm().as_str(), meaning, passed, held, denied, first_retry })
}
