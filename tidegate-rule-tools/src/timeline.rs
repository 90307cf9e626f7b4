//! `Timeline`: the decisions on a repeated request, in virtual time.

use std::time::Duration;

use tidegate::limits::Algorithm;
use tidegate::spi::{Check, CheckResult};
use tidegate::{Limit, Limiter, ManualClock, MemoryStore, Request, RuleSet, Timestamp};

/// The most requests that one point of a timeline tries.
const MAX_TRIES: u64 = 100_000;

/// The most points of a timeline.
const MAX_POINTS: usize = 4;

/// The decisions if a request were repeated: at first as fast as possible, then whenever it is admitted again.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Timeline {
    /// The points from the first request on, up to the end of the clock. Empty if no rule limits the request or its cost is 0.
    pub points: Vec<TimelinePoint>,
}

/// One point in time.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TimelinePoint {
    /// The time since the first request.
    pub at: Duration,
    /// How many requests are admitted.
    pub allowed: u64,
    /// How many of them in the grace of a quota.
    pub in_grace: u64,
    /// The longest delay among them.
    pub longest_delay: Duration,
    /// The refusal of the next one. `None` if more would be admitted than were tried.
    pub denied: Option<TimelineDenial>,
}

/// A refusal.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TimelineDenial {
    /// The rule that refuses.
    pub rule: String,
    /// The time until the next one is admitted. `None` if it never is.
    pub retry_after: Option<Duration>,
    /// The time until the whole limit is available again.
    pub reset_after: Duration,
    /// Whether a concurrency limit refuses: the next one is admitted when one of those before it ends, and the timeline ends here.
    pub until_release: bool,
}

/// The first of January 2026, where windows of every common length begin.
const WINDOW_START: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);

/// The timeline of a request. It begins with a new window, or `now` if the request is limited by a quota: its periods have no common
/// beginning.
pub(crate) fn timeline(rules: &RuleSet, request: &Request<'_>, now: Timestamp) -> Timeline {
    let is_quota = |check: &Check<'_>| matches!(check.gate().limit(), Limit::Quota(_));
    let start = if rules.resolve(request).checks().iter().any(is_quota) { now } else { WINDOW_START };
    let clock = ManualClock::starting_at(start);
    let limiter = Limiter::new(rules.clone(), MemoryStore::new().with_clock(clock.clone()));
    let mut timeline = Timeline::default();
    // The cost of the request counts only for rules without a cost of their own.
    if limiter.plan(request).checks().iter().all(|check| check.cost() == 0) {
        return timeline;
    }
    let mut at = Duration::ZERO;
    while timeline.points.len() < MAX_POINTS {
        clock.set(start.plus(at));
        let point = TimelinePoint::try_requests(&limiter, request, at);
        let next = point.denied.as_ref().filter(|denied| !denied.until_release).and_then(|denied| {
            // First when one request is admitted again, in the end when the whole limit is available.
            let wait = if timeline.points.len() + 2 >= MAX_POINTS { denied.reset_after } else { denied.retry_after? };
            denied.retry_after.and_then(|_| at.checked_add(wait))
        });
        timeline.points.push(point);
        match next {
            // At its end the clock stands still, and results would be wrong.
            Some(next) if start.plus(next) < Timestamp::MAX => at = next,
            _ => break,
        }
    }
    timeline
}

/// Whether a check is of a concurrency limit, and passes once enough is released.
fn is_held(check: &CheckResult) -> bool {
    check.algorithm() == Algorithm::Concurrency && check.outcome().retry_after.is_some()
}

impl TimelinePoint {
    fn try_requests(limiter: &Limiter<MemoryStore>, request: &Request<'_>, at: Duration) -> Self {
        let mut point = Self { at, allowed: 0, in_grace: 0, longest_delay: Duration::ZERO, denied: None };
        while point.allowed < MAX_TRIES {
            let decision = limiter.check_now(request);
            if !decision.is_allowed() {
                point.denied = Some(TimelineDenial {
                    rule: decision.rule().unwrap_or_default().to_owned(),
                    retry_after: decision.retry_after(),
                    reset_after: decision.reset_after().unwrap_or_default(),
                    until_release: decision.most_restrictive().is_some_and(is_held),
                });
                break;
            }
            point.longest_delay = point.longest_delay.max(decision.delay());
            point.allowed += 1;
            point.in_grace += u64::from(decision.is_in_grace());
        }
        point
    }
}

#[cfg(test)]
mod tests {
    use tidegate::Secret;

    use super::*;
    use tidegate_rules::RuleFile;

    use crate::{explain, explain_at};

    /// The moments of a request to the one rule of a file: when, how many pass, and whether more would.
    fn points(rule: &str, cost: u64) -> Vec<(Duration, u64, bool)> {
        let text = format!("version: 1\nrules:\n  - {{ id: a, match: {{}}, per: [], {rule} }}\n");
        let file = RuleFile::parse("rules.yaml", &text).unwrap();
        let timeline = explain(&file, &Request::new("").with_cost(cost), &Secret::public()).timeline;
        timeline.points.iter().map(|point| (point.at, point.allowed, point.denied.is_none())).collect()
    }

    const fn days(days: u64) -> Duration {
        Duration::from_secs(days * 24 * 60 * 60)
    }

    #[test]
    fn a_rule_with_its_own_cost_ignores_the_cost_of_the_caller() {
        let own = points("cost: 2, token_bucket: { capacity: 4, refill: 2/d }", 0);
        assert_eq!(own, [(days(0), 2, false), (days(1), 1, false), (days(2), 1, false), (days(4), 2, false)]);
        assert_eq!(points("token_bucket: { capacity: 4, refill: 2/d }", 0), [], "nothing is spent, so nothing happens");
        assert_eq!(points("cost: 0, token_bucket: { capacity: 4, refill: 2/d }", 1), []);
    }

    #[test]
    fn months_and_years_have_their_calendar_length() {
        let each = |at: [u64; 4]| at.map(|day| (days(day), 3, false));
        assert_eq!(points("fixed_window: { limit: 3, window: month }", 1), each([0, 31, 59, 90]));
        assert_eq!(points("fixed_window: { limit: 3, window: year }", 1), each([0, 365, 730, 1096]));
    }

    #[test]
    fn a_timeline_of_a_quota_begins_now_and_counts_what_is_in_grace() {
        let text = "version: 1\nrules:\n- { id: a, match: {}, per: [], quota: { amount: 3, grace: 2, period: day, timezone: Europe/Berlin } }\n";
        let file = RuleFile::parse("rules.yaml", text).unwrap();
        // Noon on the day before the clocks are put forward.
        let noon = Timestamp::from_micros(1_774_695_600_000_000);
        let timeline = explain_at(&file, &Request::new(""), &Secret::public(), noon).timeline;
        let points: Vec<_> =
            timeline.points.iter().map(|point| (point.at.as_secs() / 3600, point.allowed, point.in_grace)).collect();
        assert_eq!(points, [(0, 5, 2), (12, 5, 2), (35, 5, 2), (59, 5, 2)]);
    }

    #[test]
    fn a_timeline_ends_where_requests_must_end_first() {
        assert_eq!(points("concurrency: { max: 3 }", 1), [(days(0), 3, false)]);
        assert_eq!(points("concurrency: { max: 3 }", 2), [(days(0), 1, false)]);
        assert_eq!(points("concurrency: { max: 3 }", 4), [(days(0), 0, false)]);
    }

    #[test]
    fn a_timeline_ends_where_the_clock_does() {
        // The first window ends in 2069, the next one beyond the clock.
        let windows = points("fixed_window: { limit: 3, window: 36500d }", 1);
        assert_eq!(windows, [(days(0), 3, false), (days(36_500 - 20_454), 3, false)]);
        assert_eq!(points("sliding_log: { limit: 3, window: 36500d }", 1), [(days(0), 3, false)]);
    }
}
