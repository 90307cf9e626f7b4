//! What decides the partition of a key, and so its slot in a cluster.

use std::collections::BTreeSet;
use std::time::Duration;

use tidegate::limits::Penalty;
use tidegate::rules::PartitionBy;
use tidegate::spi::{CountedSubject, Plan};
use tidegate::{Limit, Request, Rule, RuleSet};

fn rule(id: &str) -> Rule {
    let limits = ["minute", "hour"].map(|name| {
        let window = Duration::from_secs(if name == "minute" { 60 } else { 3600 });
        (name, Limit::fixed_window(9, window).unwrap())
    });
    Rule::from_limits(id, limits)
}

/// The partitions of a tenant's hundred users.
fn partitions(rules: &RuleSet) -> BTreeSet<u16> {
    let users: Vec<String> = (0..100).map(|user| user.to_string()).collect();
    let requests =
        users.iter().map(|user| Request::new("").with_attribute("tenant", "acme").with_attribute("user", user));
    requests
        .flat_map(|request| {
            let plan = rules.resolve(&request);
            plan.checks().iter().map(|check| check.key().partition()).collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn the_keys_of_a_tenant_are_in_one_partition_unless_partitioned_by_subject() {
    let partitions_by =
        |by| partitions(&RuleSet::new([rule("api").with_per(["tenant", "user"]).with_partition_by(by)]).unwrap());
    assert_eq!(partitions_by(PartitionBy::Auto).len(), 1);
    assert!(partitions_by(PartitionBy::Subject).len() > 80, "{:?}", partitions_by(PartitionBy::Subject));
    assert_eq!(partitions_by(PartitionBy::Rule).len(), 1);
    assert_ne!(partitions_by(PartitionBy::Rule), partitions_by(PartitionBy::Auto));
}

#[test]
fn the_limits_of_one_subject_are_always_in_one_partition() {
    for by in [PartitionBy::Auto, PartitionBy::Subject, PartitionBy::Rule, PartitionBy::Constant("checkout".into())] {
        let rules = RuleSet::new([rule("api").with_per(["user"]).with_partition_by(by.clone())]).unwrap();
        let plan = rules.resolve(&Request::new("").with_attribute("user", "ann"));
        let partitions: BTreeSet<u16> = plan.checks().iter().map(|check| check.key().partition()).collect();
        assert_eq!((plan.checks().len(), partitions.len()), (2, 1), "{by:?}");
    }
}

#[test]
fn rules_with_the_same_constant_are_in_one_partition() {
    let together = |names: [&str; 2]| {
        let rules = names.map(|name| rule(&format!("of {name}")).with_partition_by(PartitionBy::Constant(name.into())));
        let [mut one, other] = rules;
        if names[0] == names[1] {
            one = rule("another").with_per(["user"]).with_partition_by(PartitionBy::Constant(names[0].into()));
        }
        partitions(&RuleSet::new([one, other]).unwrap()).len()
    };
    assert_eq!(together(["checkout", "checkout"]), 1);
    assert_eq!(together(["checkout", "search"]), 2);
}

#[test]
fn rules_that_share_a_budget_must_be_partitioned_alike() {
    let shared = |id, by| rule(id).with_per(["tenant", "user"]).with_budget("api").with_partition_by(by);
    assert!(RuleSet::new([shared("a", PartitionBy::Rule), shared("b", PartitionBy::Rule)]).is_ok());
    let error = RuleSet::new([shared("a", PartitionBy::Rule), shared("b", PartitionBy::Subject)]).unwrap_err();
    assert!(error.to_string().contains("the same limits, `per` and tag"), "{error}");
    let rules = RuleSet::new([shared("a", PartitionBy::Rule), shared("b", PartitionBy::Rule)]).unwrap();
    assert_eq!(partitions(&rules).len(), 1);
}

/// An operator finds the state of a subject by what a log has kept of it.
#[test]
fn a_counted_subject_leads_to_the_keys_that_it_was_counted_in() {
    let penalty = Penalty::new(3, Duration::from_secs(60), 2, Duration::from_secs(3600)).unwrap();
    for by in [PartitionBy::Auto, PartitionBy::Subject, PartitionBy::Rule, PartitionBy::Constant("checkout".into())] {
        let per: [&[&str]; 3] = [&["user"], &["tenant", "user"], &[]];
        for per in per {
            let rule = rule("api").with_per(per.iter().copied()).with_partition_by(by.clone());
            // A penalty needs a subject.
            let rule = if per.is_empty() { rule } else { rule.with_security().with_penalty(penalty) };
            let rules = RuleSet::new([rule]).unwrap();
            let plan = rules.resolve(&Request::new("").with_attribute("tenant", "acme").with_attribute("user", "ann"));
            let counted = CountedSubject::from_check(&plan.checks()[0]);
            let found = rules.resolve_counted("api", "", &counted).unwrap();
            let keys =
                |plan: &Plan<'_>| plan.checks().iter().map(|check| format!("{:?}", check.key())).collect::<Vec<_>>();
            let limits = if per.is_empty() { 2 } else { 3 };
            assert_eq!((found.checks().len(), keys(&found)), (limits, keys(&plan)), "{by:?} {per:?}");
            assert!(rules.resolve_counted("other", "", &counted).is_none());
        }
    }
}
