//! `RefusalLog`: one event for each refused request, and a bounded number of them under attack.
//!
//! In each window of a second, a rule writes at most [`MAX_LINES_PER_RULE`](rule_lines::MAX_LINES_PER_RULE) lines, one subject under it at most
//! [`MAX_LINES_PER_SUBJECT`](rule_lines::MAX_LINES_PER_SUBJECT), and all rules together at most [`MAX_LINES`]. What is beyond is counted, and reported for each
//! rule at the end of the window as `suppressed`: the lines and these counts add up to the number of refusals.
//!
//! A line names the rule and the kind of subject. Of the subject itself it has eight digits of a hash, and of the request
//! nothing that a client chooses. By these digits the log [finds](RefusalLog::find) the subject again, for an hour.

mod refusal;
mod refused_subjects;
mod rule_lines;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tidegate::limits::Algorithm;
use tidegate::spi::{CountedSubject, Observer, Plan, Role, Subject};
use tidegate::sync::RwLock;
use tidegate::{Decision, OnFailure, StoreError};
use tidegate_rules::RuleFile;

use self::refusal::Refusal;
pub(crate) use self::refused_subjects::RefusedSubject;
use self::refused_subjects::RefusedSubjects;
use self::rule_lines::RuleLines;

/// Lines of all rules in a window; also the number of rules that are summed up at its end, the others in the next.
const MAX_LINES: u32 = 100;

/// Rules that are counted one by one. Only limits of an Envoy configuration could be more.
const MAX_RULES: usize = 10_000;

/// Writes refusals to the log.
#[derive(Debug)]
pub(crate) struct RefusalLog {
    rules: RwLock<HashMap<Box<str>, Arc<RuleLines>>>,
    /// The rules beyond [`MAX_RULES`].
    others: Arc<RuleLines>,
    window: AtomicU32,
    lines: AtomicU32,
    subjects: RefusedSubjects,
    /// Hashes the hash of a subject once more, where the secret is public, so that the subject could be guessed.
    blind: Option<RandomState>,
}

impl RefusalLog {
    /// A log of the rules of `file`. With a public secret, the digits of a subject are valid in this process only.
    pub(crate) fn new(file: &RuleFile, is_secret_public: bool) -> Self {
        let log = Self {
            rules: RwLock::default(),
            others: Arc::new(RuleLines::new("descriptor".to_owned(), None)),
            window: AtomicU32::new(0),
            lines: AtomicU32::new(0),
            subjects: RefusedSubjects::default(),
            blind: is_secret_public.then(RandomState::new),
        };
        log.follow(file);
        log
    }

    /// Replaces the subjects and paths of the rules by those of a file. The counts of the window are kept.
    pub(crate) fn follow(&self, file: &RuleFile) {
        let routes: HashMap<&str, String> =
            file.path_patterns().map(|(rule, patterns)| (rule, patterns.join(" "))).collect();
        let mut rules = self.rules.write();
        for (rule, names) in file.per_by_rule() {
            let route = routes.get(rule).filter(|route| !route.is_empty()).cloned();
            let rule_lines = RuleLines::new(crate::observe::metrics::subject_type(&names), route);
            if let Some(before) = rules.get(rule) {
                if before.subject_type != rule_lines.subject_type {
                    self.subjects.remove_rule(rule);
                }
                rule_lines.lines.store(before.lines.load(Ordering::Relaxed), Ordering::Relaxed);
                rule_lines.suppressed.store(before.suppressed.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            rules.insert(rule.into(), Arc::new(rule_lines));
        }
    }

    /// Ends the window: reports the suppressed counts, and lets every rule write again. To be called once a second.
    pub(crate) fn end_window(&self) {
        self.window.fetch_add(1, Ordering::Relaxed);
        self.lines.store(0, Ordering::Relaxed);
        let rules = self.rules.read();
        let mut summaries = 0;
        for (rule, rule_lines) in
            rules.iter().map(|(rule, rule_lines)| (&**rule, rule_lines)).chain([("other", &self.others)])
        {
            rule_lines.lines.store(0, Ordering::Relaxed);
            if summaries == MAX_LINES || rule_lines.suppressed.load(Ordering::Relaxed) == 0 {
                continue;
            }
            summaries += 1;
            let suppressed = rule_lines.suppressed.swap(0, Ordering::Relaxed);
            tracing::info!(target: "tidegate::refusals", rule, suppressed, "further refusals");
        }
    }

    /// Writes a refusal, or counts it if the rule has written enough.
    fn refuse(&self, refusal: &Refusal<'_>) {
        if !tracing::enabled!(target: "tidegate::refusals", tracing::Level::INFO) {
            return;
        }
        let rules = self.rules.read();
        if let Some(rule_lines) = rules.get(refusal.rule) {
            return self.write(rule_lines, refusal);
        }
        drop(rules);
        self.write(&self.add(refusal.rule), refusal);
    }

    fn write(&self, rule_lines: &RuleLines, refusal: &Refusal<'_>) {
        let window = self.window.load(Ordering::Relaxed);
        let is_written = rule_lines.admits(window, refusal.subject)
            && self.lines.load(Ordering::Relaxed) < MAX_LINES
            && self.lines.fetch_add(1, Ordering::Relaxed) < MAX_LINES;
        if !is_written {
            rule_lines.suppressed.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if let Some(counted) = refusal.counted {
            self.subjects.insert(refusal.rule, refusal.plan, counted, window);
        }
        let Refusal { rule, plan, algorithm, limit, retry_after_ms, reason, mode, degraded, origin, .. } = *refusal;
        tracing::info!(
            target: "tidegate::refusals",
            rule,
            plan = (!plan.is_empty()).then_some(plan),
            algorithm,
            subject_type = rule_lines.subject_type,
            subject = self.digits(refusal.subject),
            route = rule_lines.route,
            method = (!origin.method().is_empty()).then_some(origin.method()),
            door = origin.front_door(),
            limit,
            retry_after_ms,
            reason,
            mode,
            degraded,
            "refused"
        );
    }

    /// The entry of a rule that no rule file has: a limit of an Envoy configuration.
    fn add(&self, rule: &str) -> Arc<RuleLines> {
        let mut rules = self.rules.write();
        if rules.len() >= MAX_RULES && !rules.contains_key(rule) {
            return Arc::clone(&self.others);
        }
        let rule_lines =
            rules.entry(rule.into()).or_insert_with(|| Arc::new(RuleLines::new("descriptor".to_owned(), None)));
        Arc::clone(rule_lines)
    }

    /// Eight digits that are the same for the same subject.
    pub(crate) fn digits(&self, subject: Subject) -> String {
        let mut digits = self.all_digits(subject);
        digits.truncate(8);
        digits
    }

    /// The digits of which a line has the first eight.
    pub(crate) fn all_digits(&self, subject: Subject) -> String {
        match &self.blind {
            None => subject.to_string(),
            Some(key) => format!("{:016x}", key.hash_one(subject)),
        }
    }

    /// The subjects that lines have named with these first digits in the last hour, under one rule or under all.
    pub(crate) fn find(&self, digits: &str, rule: Option<&str>) -> Vec<RefusedSubject> {
        let window = self.window.load(Ordering::Relaxed);
        self.subjects.find(rule, window, |subject| self.all_digits(subject).starts_with(digits))
    }
}

impl Observer for RefusalLog {
    fn decided(&self, plan: &Plan<'_>, decision: &Decision) {
        if let Some(check) = decision.most_restrictive().filter(|_| !decision.is_allowed()) {
            self.refuse(&Refusal::from_check(check, decision, plan));
        }
        for check in decision.checks() {
            if check.role() == Role::Shadow && !check.is_skipped() && !check.outcome().admitted {
                self.refuse(&Refusal::from_check(check, decision, plan));
            }
        }
    }

    /// Logs a request that a closed rule refuses, since the store failed or this instance is overloaded: no decision follows.
    fn undecided(&self, plan: &Plan<'_>, error: &StoreError) {
        if !plan.fails_closed(error) {
            return;
        }
        let enforced = || plan.checks().iter().filter(|check| check.gate().role() != Role::Shadow);
        let closed = enforced().find(|check| check.policy(error) == OnFailure::Closed).or_else(|| enforced().next());
        let Some(check) = closed else { return };
        let gate = check.gate();
        self.refuse(&Refusal {
            rule: &gate.rule().id,
            plan: gate.plan(),
            algorithm: gate.limit().algorithm().as_str(),
            subject: check.key().subject(),
            counted: Some(CountedSubject::from_check(check)),
            limit: (gate.limit().algorithm() != Algorithm::Penalty).then(|| gate.limit().amount()),
            retry_after_ms: None,
            reason: if error.is_crowded() { "overloaded" } else { "closed" },
            mode: "enforced",
            degraded: Some(error.kind().as_str()),
            origin: plan.origin(),
        });
    }
}
