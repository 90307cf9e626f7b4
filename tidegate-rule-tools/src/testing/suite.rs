//! `TestSuite`: a valid test file, compiled to the time, request and expectation of every step. [Running](super::runner) it decides
//! the requests.

mod expectation;
mod overlay;

use std::time::Duration;

use tidegate::Timestamp;
use tidegate::attributes::RequestAttributes;
use tidegate::grants::DEFAULT_RESERVATION_TTL;
use tidegate_rules::internals::{Span, Spanned, format_duration};
use tidegate_rules::{Problem, RequestDescription, parse_duration};

use super::instant::{DEFAULT_START, is_instant, parse_instant};
use super::schema_types;

pub(super) use expectation::{CountAssertion, DecisionField, Expectation, FieldAssertion};

/// The most requests that one file may send: a few seconds of work.
const MAX_REQUESTS: u64 = 1_000_000;

/// The most time for which the requests of one file may hold slots, in sum: every second of it is at most three renewals.
const MAX_HELD: Duration = Duration::from_secs(1_000_000);

/// A valid test file.
#[derive(Debug)]
pub(super) struct TestSuite {
    pub(super) start: Timestamp,
    /// The number of instances that share the store.
    pub(super) instances: u32,
    pub(super) cases: Vec<TestCase>,
}

/// One test.
#[derive(Debug)]
pub(super) struct TestCase {
    pub(super) name: String,
    pub(super) span: Span,
    pub(super) steps: Vec<Step>,
}

/// One step of a test.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) span: Span,
    /// The time of its first request, after the start.
    pub(super) at: Duration,
    pub(super) send: u64,
    pub(super) every: Duration,
    /// How long a request holds the slots that it takes; until they run out if missing.
    pub(super) holds: Option<Spanned<Duration>>,
    /// The actual cost, by which that of each request is settled at once.
    pub(super) actual: Option<Spanned<u64>>,
    pub(super) peek: bool,
    pub(super) store_fails: bool,
    pub(super) description: RequestDescription,
    pub(super) attributes: RequestAttributes<'static>,
    pub(super) expectation: Option<Expectation>,
}

/// The state of compiling a suite: the problems so far, the ids of the rules, and the number of requests so far.
pub(super) struct SuiteBuilder<'p> {
    problems: &'p mut Vec<Problem>,
    /// The ids of the rules, if known.
    rules: Option<Vec<String>>,
    start: Timestamp,
    requests: u64,
    /// The sum of the times for which requests hold slots.
    held: Duration,
    /// Whether invalid parts were removed, so that missing ones have been reported already.
    partial: bool,
}

impl TestSuite {
    /// Compiles a test file and appends its problems. If there are errors among them, the suite must not be run.
    pub(super) fn new(
        file: &schema_types::TestFileSpec,
        rules: Option<Vec<String>>,
        problems: &mut Vec<Problem>,
    ) -> Self {
        let partial = !problems.is_empty();
        let mut builder =
            SuiteBuilder { problems, rules, start: DEFAULT_START, requests: 0, held: Duration::ZERO, partial };
        if let Some(at) = &*file.start {
            match parse_instant(at) {
                Ok(start) => builder.start = start,
                Err(why) => _ = builder.error("instant", &at.span, why),
            }
        }
        let common = builder.request(&RequestDescription::default(), &file.request);
        if file.tests.is_empty() && !partial {
            builder.error("no-tests", &file.rules.span, "there are no tests in this file");
        }
        let cases = file.tests.iter().map(|test| builder.case(test, &common)).collect();
        builder.unique_names(file);
        let instances = file.instances.as_ref().map_or(1, |at| builder.instances(at));
        Self { start: builder.start, instances, cases }
    }
}

impl SuiteBuilder<'_> {
    fn error(&mut self, code: &'static str, span: &Span, message: impl Into<String>) -> &mut Problem {
        self.problems.push(Problem::error(code, message, span.clone()));
        let last = self.problems.len() - 1;
        &mut self.problems[last]
    }

    fn case(&mut self, at: &Spanned<schema_types::TestSpec>, common: &RequestDescription) -> TestCase {
        let test = &at.value;
        let own = self.request(common, &test.request);
        let mut now = Duration::ZERO;
        let mut steps = Vec::new();
        for written in &test.steps {
            let Some(step) = self.step(written, &own, &mut now) else { continue };
            steps.push(step);
        }
        if !self.partial && !test.steps.iter().any(|step| step.expect.is_some()) {
            let message = "no step of this test expects anything, so it cannot fail";
            self.error("no-expectation", &test.name.span, message)
                .set_help("write `expect: allowed`, or another expectation");
        }
        TestCase { name: test.name.value.clone(), span: test.name.span.clone(), steps }
    }

    /// Compiles a step, and sets `now` to the time of its last request.
    fn step(
        &mut self,
        at: &Spanned<schema_types::StepSpec>,
        own: &RequestDescription,
        now: &mut Duration,
    ) -> Option<Step> {
        let step = &at.value;
        let start_time = self.time(step, *now);
        let send = self.sends(step, &at.span);
        let every = step.every.as_ref().and_then(|at| self.duration(at)).unwrap_or_default();
        *now =
            start_time.saturating_add(every.saturating_mul(u32::try_from(send.saturating_sub(1)).unwrap_or(u32::MAX)));
        self.ends_in_time(
            *now,
            step.every.as_ref().or(step.at.as_ref()).or(step.after.as_ref()).map_or(&at.span, |at| &at.span),
        );
        let mut description = self.request(own, &step.request);
        if let Some(cost) = &*step.cost {
            description.cost = Some(cost.value);
        }
        let expectation = step.expect.as_ref().map(|expect| self.expectation(expect, send));
        let attributes = description.attributes().map(RequestAttributes::into_owned).map_err(|error| {
            // Problems of a single part were reported at the part; this one is about their combination.
            if !self.problems.iter().any(|problem| problem.code() == "request") {
                self.error("request", &at.span, error.to_string());
            }
        });
        let holds = step.holds.as_ref().and_then(|at| self.holds(at, send));
        let is_set = |field: &schema_types::OptionalField<Spanned<bool>>| field.as_ref().is_some_and(|at| at.value);
        let (peek, store_fails) = (is_set(&step.peek), is_set(&step.store_fails));
        if let (true, true, Some(at)) = (peek, store_fails, &*step.peek) {
            let message = "a failing store cannot be peeked at";
            self.error("peek", &at.span, message).set_help("keep one of `peek` and `store_fails`");
        }
        if let (true, Some(at)) = (peek, &*step.holds) {
            let message = "a peek takes no slot, so it holds none";
            self.error("holds", &at.span, message).set_help("keep one of `peek` and `holds`");
        }
        let actual = step.actual.as_ref().cloned();
        if let (true, Some(at)) = (peek || store_fails, &actual) {
            let message = "nothing is counted that an actual cost could correct";
            self.error("actual", &at.span, message).set_help("remove `actual`, or `peek` and `store_fails`");
        }
        if let (Some(_), Some(holds)) = (&actual, &holds)
            && holds.value >= DEFAULT_RESERVATION_TTL
        {
            let message = format!("a reservation runs out after {} s", DEFAULT_RESERVATION_TTL.as_secs());
            self.error("holds", &holds.span, message).set_help("hold it for a shorter time");
        }
        let (span, attributes) = (at.span.clone(), attributes.ok()?);
        Some(Step {
            span,
            at: start_time,
            send,
            every,
            holds,
            actual,
            peek,
            store_fails,
            description,
            attributes,
            expectation,
        })
    }

    fn instances(&mut self, at: &Spanned<u64>) -> u32 {
        match u32::try_from(at.value) {
            Ok(instances) if instances > 0 => instances,
            _ => {
                let message = format!("{} is out of range: it must be 1 to {}", at.value, u32::MAX);
                self.error("instances", &at.span, message).set_help("leave it out for one");
                1
            }
        }
    }

    /// The start time of a step.
    fn time(&mut self, step: &schema_types::StepSpec, now: Duration) -> Duration {
        match (&*step.at, &*step.after) {
            (Some(at), Some(after)) => {
                let message = "`at` and `after` both set the time";
                self.error("time", &after.span, message).set_help("keep one of the two");
                self.time_after_start(at).unwrap_or(now)
            }
            (Some(at), None) => {
                let Some(wanted) = self.time_after_start(at) else { return now };
                if wanted < now {
                    let message =
                        format!("time cannot go backwards: the previous request is at {}", format_duration(now));
                    self.error("time", &at.span, message)
                        .set_help("put the steps in order, or start a new test, which begins with full limits");
                }
                wanted.max(now)
            }
            (None, Some(after)) => now.saturating_add(self.duration(after).unwrap_or_default()),
            (None, None) => now,
        }
    }

    /// The time from the start of the test: a duration, or an instant.
    fn time_after_start(&mut self, at: &Spanned<String>) -> Option<Duration> {
        if !is_instant(at) {
            return self.duration(at);
        }
        let instant = parse_instant(at).map_err(|why| _ = self.error("instant", &at.span, why)).ok()?;
        let Some(micros) = instant.as_micros().checked_sub(self.start.as_micros()) else {
            let message = "the time is before the start of the test";
            self.error("time", &at.span, message).set_help("set an earlier `start` at the top of the file");
            return None;
        };
        Some(Duration::from_micros(micros))
    }

    fn ends_in_time(&mut self, end: Duration, span: &Span) {
        let end = u64::try_from(end.as_micros()).unwrap_or(u64::MAX);
        if self.start.as_micros().saturating_add(end) >= Timestamp::MAX.as_micros() {
            self.error("time", span, "the time is after the year 2111, where the clock of Tidegate ends");
        }
    }

    fn sends(&mut self, step: &schema_types::StepSpec, span: &Span) -> u64 {
        let send = step.send.as_ref().map_or(1, |send| send.value);
        let span = step.send.as_ref().map_or(span, |send| &send.span);
        if send == 0 {
            self.error("send", span, "the step sends no requests").set_help("write 1 or more, or leave the step out");
            return 1;
        }
        let before = self.requests;
        self.requests = before.saturating_add(send);
        if before <= MAX_REQUESTS && self.requests > MAX_REQUESTS {
            let message = format!("with this step the file sends more than the maximum of {MAX_REQUESTS} requests");
            self.error("send", span, message).set_help("test a smaller limit, or split the file");
        }
        send.min(MAX_REQUESTS)
    }

    /// How long each of `send` requests holds its slots.
    fn holds(&mut self, at: &Spanned<String>, send: u64) -> Option<Spanned<Duration>> {
        let holds = self.duration(at)?;
        let before = self.held;
        self.held = before.saturating_add(holds.saturating_mul(u32::try_from(send).unwrap_or(u32::MAX)));
        if before <= MAX_HELD && self.held > MAX_HELD {
            let message = format!(
                "with this step the requests of the file hold slots for more than {} s together",
                MAX_HELD.as_secs()
            );
            self.error("holds", &at.span, message).set_help("hold fewer requests, or for a shorter time");
        }
        Some(Spanned::new(holds, at.span.clone()))
    }

    fn duration(&mut self, at: &Spanned<String>) -> Option<Duration> {
        parse_duration(at).map_err(|why| _ = self.error("duration", &at.span, why)).ok()
    }

    /// Reports tests of the same name, which results could not distinguish.
    fn unique_names(&mut self, file: &schema_types::TestFileSpec) {
        let mut taken = std::collections::HashSet::new();
        for test in &file.tests {
            if !taken.insert(test.name.as_str()) {
                let message = "an earlier test has this name";
                self.error("duplicate-name", &test.name.span, message).set_help("give every test a name of its own");
            }
        }
    }
}
