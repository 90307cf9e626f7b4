//! Normal forms of rules in code: one person, one bucket.

use std::time::Duration;

use tidegate::spi::{RequestProblemKind, Subject};
use tidegate::{Limit, Request, Rule, RuleSet};

fn rule(per: &str) -> Rule {
    Rule::new("r", Limit::sliding_log(5, Duration::from_secs(600)).unwrap()).with_per([per])
}

/// The subject of a request with this value of `name`.
fn subject(rules: &RuleSet, name: &str, value: &str) -> Subject {
    rules.resolve(&Request::new("").with_attribute(name, value)).checks()[0].key().subject()
}

fn is_one_subject(rule: Rule, name: &str, values: &[&str]) -> bool {
    let rules = RuleSet::new([rule]).unwrap();
    values.windows(2).all(|two| subject(&rules, name, two[0]) == subject(&rules, name, two[1]))
}

const SPELLINGS: [&str; 4] = ["zed@x.io", "Zed@x.io", "ZED@X.IO", " zed@x.io\u{1f}"];

#[test]
fn spellings_of_an_attribute_with_normal_forms_are_one_subject() {
    assert!(is_one_subject(rule("to | trim | lower"), "to", &SPELLINGS));
    assert!(is_one_subject(rule("to|email"), "to", &SPELLINGS));
    assert!(!is_one_subject(rule("to | lower"), "to", &SPELLINGS));
    assert!(!is_one_subject(rule("to"), "to", &SPELLINGS));
}

#[test]
fn an_account_of_a_security_rule_is_one_subject_in_all_letters_unless_it_is_exact() {
    for name in ["account", "user", "email", "login"] {
        assert!(is_one_subject(rule(name).with_security(), name, &SPELLINGS), "{name}");
        assert!(!is_one_subject(rule(name), name, &SPELLINGS), "{name}");
    }
    assert!(!is_one_subject(rule("account | exact").with_security(), "account", &SPELLINGS));
    assert!(!is_one_subject(rule("api_key").with_security(), "api_key", &SPELLINGS));
}

#[test]
fn spellings_of_credentials_are_one_subject() {
    for name in ["header:authorization", "header:proxy-authorization"] {
        assert!(is_one_subject(rule(name), name, &["Basic emVkOnA=", "bAsIc   emVkOnB=", "BASIC\temVkOnA"]));
        assert!(is_one_subject(rule(name), name, &["Bearer k1", "bearer  k1"]));
        assert!(!is_one_subject(rule(name), name, &["Bearer k1", "Bearer K1"]));
    }
    let two = Request::new("").with_attribute("header:authorization", "Basic emVkOnA= Bearer e30.e30.x");
    let plan = RuleSet::new([rule("header:authorization")]).unwrap();
    let problem = plan.resolve(&two).problem().cloned().unwrap();
    assert_eq!((problem.kind(), problem.status()), (RequestProblemKind::Ambiguous, 400));
    assert!(problem.to_string().contains("Send the credentials of one client"), "{problem}");
    assert!(!is_one_subject(rule("header:x-key"), "header:x-key", &["Bearer k1", "bearer k1"]));
}

/// Otherwise everybody would begin anew.
#[test]
fn a_value_that_is_normal_has_the_same_subject_without_a_form() {
    let [plain, forms] = ["account", "account | email"].map(|per| RuleSet::new([rule(per)]).unwrap());
    assert_eq!(subject(&plain, "account", "zed@x.io"), subject(&forms, "account", "zed@x.io"));
    assert_eq!(forms.reads(), ["account"]);
}

#[test]
fn an_unknown_form_and_a_budget_with_two_forms_are_errors() {
    let error = RuleSet::new([rule("account | lowercase")]).unwrap_err().to_string();
    assert!(error.starts_with("rule \"r\": there is no normal form `lowercase`; there are `trim`, `lower`"), "{error}");
    let limit = Limit::sliding_log(5, Duration::from_secs(600)).unwrap();
    let budget = |id: &str, per: &str| Rule::new(id, limit).with_per([per]);
    let [one, two] =
        [("a", "account"), ("b", "account | lower")].map(|(id, per)| budget(id, per).with_budget("shared"));
    assert!(RuleSet::new([one, two]).unwrap_err().to_string().contains("the same limits, `per`"));
    let [one, two] =
        [budget("a", "account").with_budget("shared").with_security(), budget("b", "account").with_budget("shared")];
    assert!(RuleSet::new([one, two]).unwrap_err().to_string().contains("the same limits, `per`"));
}
