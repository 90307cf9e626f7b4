//! The lines of the refusal log.

use std::io::Write;
use std::sync::Mutex;

use serde_json::{Value, json};
use tidegate::spi::FailingStore;
use tidegate::{Limiter, MemoryStore, Request};

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

/// The digits of a line lead to the subject, and nothing else does.
#[test]
fn the_log_finds_a_subject_by_the_digits_of_its_line() {
    for is_secret_public in [false, true] {
        let mut found = Vec::new();
        let lines = lines(is_secret_public, |limiter, log| {
            for user in ["ann", "ann", "bob"] {
                ask(limiter, user);
            }
            let request = Request::new("").with_attribute("path", "/v1/7").with_attribute("user", "ann");
            let (ann, bob) = (limiter.plan(&request).checks()[0].key().subject(), "bob");
            let digits = log.digits(ann);
            found = log.find(&digits, None);
            assert_eq!(found.iter().map(|one| (&*one.rule, one.counted.subject())).collect::<Vec<_>>(), [("api", ann)]);
            assert_eq!(log.find(&log.all_digits(ann), Some("api")).len(), 1);
            assert!(log.find(&digits, Some("trial")).is_empty());
            let request = Request::new("").with_attribute("path", "/v1/7").with_attribute("user", bob);
            let bob = limiter.plan(&request).checks()[0].key().subject();
            assert!(log.find(&log.digits(bob), None).is_empty(), "bob was never refused");
            // A rule that counts by something else has other subjects.
            let other = RULES.replace("attr:user", "attr:account");
            log.follow(&RuleFile::parse("rules.yaml", &other).unwrap());
            assert!(log.find(&digits, None).is_empty());
        });
        assert_eq!((lines.len(), found.len()), (1, 1));
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

#[test]
fn a_request_that_a_closed_rule_refuses_is_logged_with_the_error_of_the_store() {
    let file = RuleFile::parse("rules.yaml", &RULES.replace("open", "closed")).unwrap();
    let log = Arc::new(RefusalLog::new(&file, false));
    let limiter = Limiter::new(file.rules().clone(), FailingStore::unavailable()).with_observer(Arc::clone(&log));
    let lines = captured(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let request = Request::new("").with_attribute("path", "/v1/7").with_attribute("user", "ann");
        assert!(runtime.block_on(limiter.check(&request)).is_err());
    });
    let [line] = lines.as_slice() else { panic!("{lines:?}") };
    assert_eq!((&line["rule"], &line["reason"]), (&json!("api"), &json!("closed")));
    assert_eq!((&line["degraded"], &line["mode"]), (&json!("unavailable"), &json!("enforced")));
}
