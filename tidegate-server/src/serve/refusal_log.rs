//! `RefusalLog`: one event for each refused request, and a bounded number of them under attack.
//!
//! In each window of a second, a rule writes at most [`MAX_LINES_PER_RULE`](rule_lines::MAX_LINES_PER_RULE) lines, one subject under it at most
//! [`MAX_LINES_PER_SUBJECT`](rule_lines::MAX_LINES_PER_SUBJECT), and all rules together at most [`MAX_LINES`]. What is beyond is counted, and reported for each
//! rule at the end of the window as `suppressed`: the lines and these counts add up to the number of refusals.
//!
//! A line names the rule and the kind of subject. Of the subject itself it has eight digits of a hash, and of the request
//! nothing that a client chooses.

mod refusal;
mod rule_lines;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use tidegate::spi::{Observer, Plan, Role, Subject};
use tidegate::{Algorithm, Decision, OnFailure, StoreError};
use tidegate_rules::RuleFile;

use self::refusal::Refusal;
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
            blind: is_secret_public.then(RandomState::new),
        };
        log.follow(file);
        log
    }

    /// Replaces the subjects and paths of the rules by those of a file. The counts of the window are kept.
    pub(crate) fn follow(&self, file: &RuleFile) {
        let routes: HashMap<&str, String> =
            file.path_patterns().map(|(rule, patterns)| (rule, patterns.join(" "))).collect();
        let mut rules = self.rules.write().unwrap_or_else(PoisonError::into_inner);
        for (rule, names) in file.per_by_rule() {
            let route = routes.get(rule).filter(|route| !route.is_empty()).cloned();
            let rule_lines = RuleLines::new(super::metrics::subject_type(&names), route);
            if let Some(before) = rules.get(rule) {
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
        let rules = self.rules.read().unwrap_or_else(PoisonError::into_inner);
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
        let rules = self.rules.read().unwrap_or_else(PoisonError::into_inner);
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
        let mut rules = self.rules.write().unwrap_or_else(PoisonError::into_inner);
        if rules.len() >= MAX_RULES && !rules.contains_key(rule) {
            return Arc::clone(&self.others);
        }
        let rule_lines =
            rules.entry(rule.into()).or_insert_with(|| Arc::new(RuleLines::new("descriptor".to_owned(), None)));
        Arc::clone(rule_lines)
    }

    /// Eight digits that are the same for the same subject.
    pub(crate) fn digits(&self, subject: Subject) -> String {
        let mut digits = match &self.blind {
            None => subject.to_string(),
            Some(key) => format!("{:016x}", key.hash_one(subject)),
        };
        digits.truncate(8);
        digits
    }
}

impl Observer for RefusalLog {
    fn decided(&self, plan: &Plan<'_>, decision: &Decision) {
        if let Some(check) = decision.most_restrictive().filter(|_| !decision.is_allowed()) {
            self.refuse(&Refusal::from_check(check, decision, plan.origin()));
        }
        for check in decision.checks() {
            if check.role() == Role::Shadow && !check.is_skipped() && !check.outcome().admitted {
                self.refuse(&Refusal::from_check(check, decision, plan.origin()));
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
            rule: gate.rule(),
            plan: gate.plan(),
            algorithm: gate.limit().algorithm().as_str(),
            subject: check.key().subject(),
            limit: (gate.limit().algorithm() != Algorithm::Penalty).then(|| gate.limit().amount()),
            retry_after_ms: None,
            reason: if error.is_crowded() { "overloaded" } else { "closed" },
            mode: "enforced",
            degraded: Some(error.kind().as_str()),
            origin: plan.origin(),
        });
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Mutex;

    use serde_json::{Value, json};
    use tidegate::spi::{Adjustment, Key, Store, Verdict};
    use tidegate::{Limiter, MemoryStore, Request, StoreErrorKind};

    use super::rule_lines::{MAX_LINES_PER_RULE, MAX_LINES_PER_SUBJECT};
    use super::*;

    const RULES: &str = "
version: 1
rules:
  - id: api
    match: { path: '/v1/{id}' }
    per: [attr:user]
    fixed_window: { limit: 1, window: 1h }
    on_failure: open
  - id: trial
    match: { action: other }
    per: []
    mode: shadow
    fixed_window: { limit: 1, window: 1h }
    on_failure: open
";

    #[derive(Clone, Default)]
    struct LogBuffer(Arc<Mutex<Vec<u8>>>);

    impl Write for LogBuffer {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// What `test` writes to the log as JSON, with a limiter of [`RULES`].
    fn lines(is_secret_public: bool, test: impl FnOnce(&Limiter<MemoryStore>, &RefusalLog)) -> Vec<Value> {
        let file = RuleFile::parse("rules.yaml", RULES).unwrap();
        let log = Arc::new(RefusalLog::new(&file, is_secret_public));
        let limiter = Limiter::new(file.rules().clone(), MemoryStore::new()).with_observer(Arc::clone(&log));
        captured(|| test(&limiter, &log))
    }

    /// What `test` writes to the log as JSON.
    fn captured(test: impl FnOnce()) -> Vec<Value> {
        let page = LogBuffer::default();
        let writer = page.clone();
        let format = tracing_subscriber::fmt().json().flatten_event(true).with_writer(move || writer.clone());
        tracing::subscriber::with_default(format.finish(), test);
        let text = String::from_utf8(page.0.lock().unwrap().clone()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn ask(limiter: &Limiter<MemoryStore>, user: &str) {
        let _ = limiter.check_now(&Request::new("").with_attribute("path", "/v1/7").with_attribute("user", user));
    }

    fn suppressed(lines: &[Value]) -> u64 {
        lines.iter().filter_map(|line| line["suppressed"].as_u64()).sum()
    }

    #[test]
    fn lines_and_suppressed_counts_add_up_to_the_number_of_refusals() {
        let lines = lines(false, |limiter, log| {
            for second in 0..4 {
                for _ in 0..100 + u32::from(second == 0) {
                    ask(limiter, "ann");
                }
                log.end_window();
            }
        });
        let refusals = lines.iter().filter(|line| line["message"] == json!("refused")).count() as u64;
        assert_eq!((refusals, suppressed(&lines)), (4 * MAX_LINES_PER_SUBJECT, 400 - 4 * MAX_LINES_PER_SUBJECT));
    }

    #[test]
    fn one_subject_does_not_use_up_the_lines_of_a_rule() {
        let lines = lines(false, |limiter, _| {
            for user in ["ann", "bob"] {
                for _ in 0..50 {
                    ask(limiter, user);
                }
            }
        });
        let subjects: Vec<_> = lines.iter().map(|line| line["subject"].clone()).collect();
        assert_eq!(subjects.len(), 10);
        assert_ne!(subjects[0], subjects[9]);
    }

    #[test]
    fn many_subjects_of_one_rule_write_a_bounded_number_of_lines() {
        let lines = lines(false, |limiter, log| {
            for user in 0..1000 {
                for _ in 0..3 {
                    ask(limiter, &user.to_string());
                }
            }
            log.end_window();
        });
        assert_eq!((lines.len(), suppressed(&lines)), (MAX_LINES_PER_RULE as usize + 1, 1990));
    }

    #[test]
    fn a_line_names_the_rule_and_the_route_and_hides_the_subject() {
        for is_secret_public in [false, true] {
            let lines = lines(is_secret_public, |limiter, _| {
                ask(limiter, "hunter2");
                ask(limiter, "hunter2");
            });
            let [line] = lines.as_slice() else { panic!("{lines:?}") };
            for (field, value) in [
                ("target", json!("tidegate::refusals")),
                ("level", json!("INFO")),
                ("rule", json!("api")),
                ("algorithm", json!("fixed_window")),
                ("subject_type", json!("attr:user")),
                ("route", json!("/v1/{id}")),
                ("limit", json!(1)),
                ("reason", json!("limit")),
                ("mode", json!("enforced")),
            ] {
                assert_eq!(line[field], value, "{field}: {line}");
            }
            let digits = line["subject"].as_str().unwrap();
            assert!(digits.len() == 8 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()), "{line}");
            let hash = tidegate::Secret::public().hasher(["user"]).subject([Some("hunter2")].into_iter()).to_string();
            assert!(!is_secret_public || !hash.starts_with(digits), "the subject could be guessed");
            assert!(!line.to_string().contains("hunter2") && !line.to_string().contains("/v1/7"), "{line}");
        }
    }

    #[test]
    fn a_shadow_rule_logs_what_it_would_refuse() {
        let lines = lines(false, |limiter, _| {
            let _ = limiter.check_now(&Request::new("other"));
            assert!(limiter.check_now(&Request::new("other")).is_allowed());
        });
        let [line] = lines.as_slice() else { panic!("{lines:?}") };
        assert_eq!((&line["rule"], &line["mode"]), (&json!("trial"), &json!("shadow")));
    }

    /// A store that never answers.
    struct FailingStore;

    impl Store for FailingStore {
        async fn decide(&self, _: &Plan<'_>) -> Result<Verdict, StoreError> {
            Err(StoreError::new(StoreErrorKind::Unavailable, "it went away"))
        }
        async fn adjust(&self, _: &[Adjustment<'_>]) -> Result<(), StoreError> {
            Ok(())
        }
        fn adjust_soon(&self, _: &[Adjustment<'_>]) {}
        async fn forget(&self, _: &[Key<'_>]) -> Result<(), StoreError> {
            Ok(())
        }
        async fn ping(&self) -> Result<(), StoreError> {
            Ok(())
        }
    }

    #[test]
    fn a_request_that_a_closed_rule_refuses_is_logged_with_the_error_of_the_store() {
        let file = RuleFile::parse("rules.yaml", &RULES.replace("open", "closed")).unwrap();
        let log = Arc::new(RefusalLog::new(&file, false));
        let limiter = Limiter::new(file.rules().clone(), FailingStore).with_observer(Arc::clone(&log));
        let lines = captured(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let request = Request::new("").with_attribute("path", "/v1/7").with_attribute("user", "ann");
            assert!(runtime.block_on(limiter.check(&request)).is_err());
        });
        let [line] = lines.as_slice() else { panic!("{lines:?}") };
        assert_eq!((&line["rule"], &line["reason"]), (&json!("api"), &json!("closed")));
        assert_eq!((&line["degraded"], &line["mode"]), (&json!("unavailable"), &json!("enforced")));
    }
}
