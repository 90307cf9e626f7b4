//! Running a [`TestSuite`]: every test on a store of its own, with a clock that stands still until a step moves it.

use std::path::Path;
use std::time::Duration;

use tidegate::grants::{Costs, GrantKind};
use tidegate::limits::Algorithm;
use tidegate::spi::CheckResult;
use tidegate::{
    Decision, Ending, Grant, Limiter, ManualClock, MemoryStore, Request, StoreError, StoreErrorKind, Timestamp,
};
use tidegate_rules::{RuleFile, yaml::SourceFile};

use super::assertions::{self, AssertionFailure, DecidedStep, OutcomeCounts, StepResult};
use super::held_requests::{HeldRequests, is_settled, poll_once};
use super::suite::{Step, TestCase, TestSuite};
use super::unavailable_step::UnavailableStep;
use super::{RuleCoverage, TestFailure, TestOutcome, TestRun, text_report};

/// Runs every test of a suite.
pub(super) fn run(suite: &TestSuite, rules: &RuleFile, source: &SourceFile, rules_path: &Path) -> TestRun {
    let enabled = rules.ids().filter(|id| rules.rules().rule(id).is_some());
    let mut runner = SuiteRunner {
        rules,
        source,
        start: suite.start,
        instances: suite.instances,
        coverage: enabled.map(|id| RuleCoverage { id: id.to_string(), applied: 0, denied: 0 }).collect(),
    };
    let tests = suite.cases.iter().map(|case| runner.run_case(case)).collect();
    TestRun {
        file: source.name().to_owned(),
        rules: rules_path.display().to_string(),
        tests,
        coverage: runner.coverage,
    }
}

/// The state that all tests of a file share.
struct SuiteRunner<'s> {
    rules: &'s RuleFile,
    source: &'s SourceFile,
    start: Timestamp,
    instances: u32,
    coverage: Vec<RuleCoverage>,
}

impl SuiteRunner<'_> {
    fn run_case(&mut self, case: &TestCase) -> TestOutcome {
        let clock = ManualClock::starting_at(self.start);
        let memory = || MemoryStore::new().with_clock(clock.clone());
        let limiter = Limiter::new(self.rules.rules().clone(), memory());
        let limiter = limiter.with_instances(self.instances).with_fallback_store(memory());
        let mut held = HeldRequests::new(&limiter, &clock, self.start);
        let mut failures = Vec::new();
        for (number, step) in case.steps.iter().enumerate() {
            failures.extend(self.step(step, number + 1, &limiter, &mut held));
        }
        TestOutcome {
            name: case.name.clone(),
            line: self.source.position(case.span.start).0,
            steps: case.steps.len(),
            requests: case.steps.iter().map(|step| step.send).sum(),
            failures,
        }
    }

    fn step(
        &mut self,
        step: &Step,
        number: usize,
        limiter: &Limiter<MemoryStore>,
        held: &mut HeldRequests<'_>,
    ) -> Vec<TestFailure> {
        let request = step.attributes.request();
        // As the gateway does with requests to a language model.
        let reserves = step.actual.is_some() && limiter.rules().settles_by_usage(&limiter.plan(&request));
        let (mut counts_so_far, mut at, mut last) = (OutcomeCounts::default(), step.at, None);
        for sent in 0..step.send {
            at = if sent == 0 { step.at } else { at + step.every };
            settle(limiter, step, last.take());
            held.advance_to(at);
            let mut decision = match (step.store_fails, step.peek) {
                (true, _) => without_store(limiter, &request),
                (_, true) => Ok(peek(limiter, &request)),
                _ if reserves => {
                    Ok(limiter.plans().check_now(&limiter.plans().reserving_usage(limiter.plan(&request))))
                }
                _ => Ok(limiter.check_now(&request)),
            };
            // Decisions while the store fails do not cover the limits.
            decision.iter().filter(|_| !step.store_fails).for_each(|decision| self.cover(decision));
            counts_so_far.add(decision.as_ref().ok());
            let mut grant = decision.as_mut().map(Decision::take_grant).unwrap_or_default();
            if let (true, Ok(decision), Some(actual)) = (reserves, &decision, &step.actual) {
                let holds = step.holds.as_ref().map_or(Duration::ZERO, |holds| holds.value);
                let reserved = grant.split_off(|part| part.kind() != GrantKind::Taken);
                if !reserved.is_empty() {
                    held.add_reservation(reserved, actual.value, at + decision.delay() + holds);
                }
            } else if let (Ok(decision), Some(holds)) = (&decision, &step.holds) {
                let slots = grant.split_slots();
                if !slots.is_empty() {
                    held.add(slots, at, at + decision.delay() + holds.value);
                }
            }
            last = Some((decision, grant));
        }
        let Some((decision, grant)) = last else { return Vec::new() };
        let mut failures = Vec::new();
        if let Some(mismatch) = holds_nothing(step, &decision).filter(|_| !reserves) {
            failures.push(self.failure(mismatch, step, number, at));
        }
        if let Some(mismatch) = settles_nothing(step, &decision, limiter) {
            failures.push(self.failure(mismatch, step, number, at));
        }
        let expectation = step.expectation.as_ref();
        let (rules, request, counts_so_far) = (self.rules, &request, &counts_so_far);
        let result = match &decision {
            Ok(decision) => StepResult::Decided(DecidedStep { rules, request, decision, actual: counts_so_far, at }),
            Err(error) => StepResult::Unavailable(UnavailableStep { rules, request, error }),
        };
        let mismatches = expectation.map(|expectation| assertions::check(expectation, &result, counts_so_far));
        let mismatches = mismatches.into_iter().flatten();
        failures.extend(mismatches.map(|mismatch| self.failure(mismatch, step, number, at)));
        // The decision shows what was estimated, the next one what it cost.
        settle(limiter, step, Some((decision, grant)));
        failures
    }

    fn failure(&self, mismatch: AssertionFailure, step: &Step, number: usize, at: Duration) -> TestFailure {
        let AssertionFailure { what, span, expected, got, note } = mismatch;
        // An empty value has no position of its own.
        let (line, column) = self.source.position(if span.is_empty() { step.span.start } else { span.start });
        TestFailure {
            line,
            column,
            step: number,
            at,
            request: text_report::format_request(&step.description),
            what,
            expected,
            got,
            note,
        }
    }

    /// Records which rules applied and which refused.
    fn cover(&mut self, decision: &Decision) {
        for rule in &mut self.coverage {
            // A rule may have several limits; a request counts once.
            let mut own = decision.checks().iter().filter(|check| check.rule() == rule.id).peekable();
            rule.applied += u64::from(own.peek().is_some());
            rule.denied += u64::from(own.any(|check| !check.outcome().admitted));
        }
    }
}

/// A step with `holds` whose last request passed and took no slot.
fn holds_nothing(step: &Step, decision: &Result<Decision, StoreError>) -> Option<AssertionFailure> {
    let holds = step.holds.as_ref()?;
    let is_slot = |check: &CheckResult| check.algorithm() == Algorithm::Concurrency && check.is_consumed();
    let has_slot = |decision: &Decision| decision.checks().iter().any(is_slot);
    let decision = decision.as_ref().ok().filter(|decision| decision.is_allowed() && !has_slot(decision))?;
    let note = match decision.degraded() {
        Some(_) => "the store fails, and the rules let the request pass without a slot",
        None => "no concurrency limit applies to the request, or it costs nothing there",
    };
    Some(AssertionFailure {
        what: "holds".into(),
        span: holds.span.clone(),
        expected: "a slot".into(),
        got: "none".into(),
        note: Some(note.into()),
    })
}

/// Corrects what an allowed request of a step with an actual cost consumed.
fn settle(limiter: &Limiter<MemoryStore>, step: &Step, decided: Option<(Result<Decision, StoreError>, Grant)>) {
    if let (Some(actual), Some((Ok(decision), mut grant))) = (&step.actual, decided)
        && decision.is_allowed()
    {
        // What is reserved is committed when the request ends.
        let costs = Costs::of(&grant, |rule| is_settled(limiter, rule).then_some(actual.value));
        // Nothing fails in a memory store.
        _ = poll_once(limiter.end(&mut grant, &Ending::Settle(costs)));
    }
}

/// A step with an actual cost whose last request passed, and to which no rule with one applies.
fn settles_nothing(
    step: &Step,
    decision: &Result<Decision, StoreError>,
    limiter: &Limiter<MemoryStore>,
) -> Option<AssertionFailure> {
    let (actual, decision) = (step.actual.as_ref()?, decision.as_ref().ok()?);
    let mut rules = decision.checks().iter().map(tidegate::spi::CheckResult::rule);
    if !decision.is_allowed() || rules.any(|rule| is_settled(limiter, rule)) {
        return None;
    }
    Some(AssertionFailure {
        what: "actual".into(),
        span: actual.span.clone(),
        expected: "a rule with `cost.actual` or `cost.usage`".into(),
        got: "none".into(),
        note: None,
    })
}

fn peek(limiter: &Limiter<MemoryStore>, request: &Request<'_>) -> Decision {
    limiter.plans().check_now(&limiter.plan(request).with_peek())
}

/// The decision on a request while the store fails; an error if a rule is closed then.
fn without_store(limiter: &Limiter<MemoryStore>, request: &Request<'_>) -> Result<Decision, StoreError> {
    let plan = limiter.plan(request);
    if plan.checks().is_empty() {
        return Ok(limiter.check_now(request));
    }
    limiter.plans().fall_back(&plan, StoreError::new(StoreErrorKind::Unavailable, "simulated by the test"))
}
