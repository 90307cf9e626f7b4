//! Requests without a subject under a rule with a ledger.

use tidegate::rules::{LedgerMode, OnMissing};
use tidegate::spi::RequestProblemKind;
use tidegate::{Request, Rule, RuleMode, StoreErrorKind};

use super::{daily, setup, units, wait};

/// Each of them was billed to an account of nobody.
#[test]
fn a_rule_in_code_with_a_ledger_refuses_what_it_could_bill_to_nobody() {
    let ours = setup(units(LedgerMode::Async));
    for nobody in [Request::new("").with_cost(3), Request::new("").with_cost(3).with_attribute("tenant", "")] {
        let refused = wait(ours.limiter.check(&nobody)).unwrap();
        let problem = refused.problem().expect("it cannot be judged");
        assert_eq!((problem.kind(), problem.source()), (RequestProblemKind::Missing, "tenant"));
        assert!(!wait(ours.limiter.reserve(&nobody, Some("job-1"))).unwrap().is_allowed());
        assert_eq!(wait(ours.limiter.charge(&nobody)).unwrap_err().kind(), StoreErrorKind::Unexpected);
    }
    assert_eq!(ours.entries(), []);
    let is_allowed = |rule: Rule| {
        let ours = setup(rule);
        let allowed = wait(ours.limiter.check(&Request::new("").with_cost(3))).unwrap().is_allowed();
        (allowed, ours.entries().len())
    };
    assert_eq!(is_allowed(units(LedgerMode::Async).with_on_missing(OnMissing::Shared)), (true, 1));
    assert_eq!(is_allowed(units(LedgerMode::Async).with_mode(RuleMode::Shadow)), (true, 0));
    let without = Rule::new("units", daily(10, 0)).with_per(["tenant"]);
    assert_eq!(is_allowed(without.clone()), (true, 0));
    assert_eq!(is_allowed(without.with_on_missing(OnMissing::Error)), (false, 0));
}
