//! `RefusedSubjects`: the subjects that lines of the refusal log have named, by which an operator finds their buckets. It keeps hashes only,
//! for an hour and in bounded memory.

use std::collections::HashMap;
use std::sync::Arc;

use tidegate::spi::{CountedSubject, Subject};
use tidegate::sync::Mutex;

/// How long a subject is kept after its last line, in windows of the log, which are seconds.
pub(crate) const MAX_AGE_WINDOWS: u32 = 3_600;

/// The most subjects that are kept, over all rules: a few megabytes. A log of 100 lines a second would name 360,000 in an hour.
const MAX_SUBJECTS: usize = 65_536;

/// The subjects by rule.
#[derive(Debug, Default)]
pub(crate) struct RefusedSubjects {
    kept: Mutex<KeptSubjects>,
}

#[derive(Debug, Default)]
struct KeptSubjects {
    rules: HashMap<Arc<str>, HashMap<Subject, RefusedUnder>>,
    count: usize,
}

/// How a rule has refused a subject.
#[derive(Clone, Debug)]
struct RefusedUnder {
    plan: Arc<str>,
    counted: CountedSubject,
    /// The window of the last line.
    window: u32,
}

/// A subject that a line has named.
#[derive(Clone, Debug)]
pub(crate) struct RefusedSubject {
    pub(crate) rule: Arc<str>,
    /// The plan that applied, often empty.
    pub(crate) plan: Arc<str>,
    pub(crate) counted: CountedSubject,
}

impl RefusedSubjects {
    /// Keeps a subject that a line names.
    pub(crate) fn insert(&self, rule: &str, plan: &str, counted: CountedSubject, window: u32) {
        let mut kept = self.kept.lock();
        let refused = RefusedUnder { plan: plan.into(), counted, window };
        let subjects = match kept.rules.get_mut(rule) {
            Some(subjects) => subjects,
            None => kept.rules.entry(rule.into()).or_default(),
        };
        if subjects.insert(counted.subject(), refused).is_none() {
            kept.count += 1;
        }
        if kept.count > MAX_SUBJECTS {
            kept.make_room(window);
        }
    }

    /// Forgets the subjects of a rule, which counts by something else now.
    pub(crate) fn remove_rule(&self, rule: &str) {
        let mut kept = self.kept.lock();
        kept.count -= kept.rules.remove(rule).map_or(0, |subjects| subjects.len());
    }

    /// The subjects that `is_meant` selects, of one rule or of all.
    pub(crate) fn find(
        &self,
        rule: Option<&str>,
        window: u32,
        is_meant: impl Fn(Subject) -> bool,
    ) -> Vec<RefusedSubject> {
        let kept = self.kept.lock();
        let mut found: Vec<RefusedSubject> = Vec::new();
        for (name, subjects) in kept.rules.iter().filter(|(name, _)| rule.is_none_or(|rule| rule == &***name)) {
            let fresh = subjects.values().filter(|refused| refused.is_fresh(window));
            let meant = fresh.filter(|refused| is_meant(refused.counted.subject()));
            found.extend(meant.map(|RefusedUnder { plan, counted, .. }| RefusedSubject {
                rule: name.clone(),
                plan: plan.clone(),
                counted: *counted,
            }));
        }
        found.sort_unstable_by(|one, other| one.rule.cmp(&other.rule));
        found
    }
}

impl KeptSubjects {
    /// Forgets what is too old; then, as often as needed, the older half of the rule with the most subjects: a flood under one rule does not
    /// displace the subjects of others.
    fn make_room(&mut self, window: u32) {
        self.retain(|_, refused| refused.is_fresh(window));
        while self.count > MAX_SUBJECTS / 8 * 7 {
            let Some(largest) = self.rules.iter().max_by_key(|(_, subjects)| subjects.len()) else { return };
            let (name, mut ages) =
                (largest.0.clone(), largest.1.values().map(|refused| refused.window).collect::<Vec<_>>());
            let middle = ages.len() / 2;
            let oldest_kept = *ages.select_nth_unstable(middle).1;
            let mut same_age = 0;
            self.retain(|rule, refused| {
                // Those of one second have no order: half of them goes.
                let is_tie = refused.window == oldest_kept && {
                    same_age += 1;
                    same_age % 2 == 0
                };
                *rule != name || refused.window > oldest_kept || is_tie
            });
        }
    }

    fn retain(&mut self, mut is_kept: impl FnMut(&Arc<str>, &RefusedUnder) -> bool) {
        for (rule, subjects) in &mut self.rules {
            subjects.retain(|_, refused| is_kept(rule, refused));
        }
        self.rules.retain(|_, subjects| !subjects.is_empty());
        self.count = self.rules.values().map(HashMap::len).sum();
    }
}

impl RefusedUnder {
    /// Windows may have been counted around.
    const fn is_fresh(&self, window: u32) -> bool {
        window.wrapping_sub(self.window) <= MAX_AGE_WINDOWS
    }
}

#[cfg(test)]
mod tests {
    use tidegate::{Limit, Request, Rule, RuleSet};

    use super::*;

    /// A rule that counts users.
    fn rules() -> RuleSet {
        let limit = Limit::fixed_window(1, std::time::Duration::from_hours(1)).unwrap();
        RuleSet::new([Rule::new("api", limit).with_per(["user"])]).unwrap()
    }

    fn counted(rules: &RuleSet, user: u32) -> CountedSubject {
        let user = user.to_string();
        CountedSubject::from_check(&rules.resolve(&Request::new("").with_attribute("user", &user)).checks()[0])
    }

    #[test]
    fn a_subject_is_found_for_an_hour_after_its_last_line() {
        let (subjects, ann) = (RefusedSubjects::default(), counted(&rules(), 1));
        let found = |window: u32| subjects.find(None, window, |subject| subject == ann.subject()).len();
        for start in [0, u32::MAX - 10] {
            subjects.insert("api", "", ann, start);
            subjects.insert("api", "", ann, start.wrapping_add(5));
            assert_eq!([3_605, 3_606].map(|after| found(start.wrapping_add(after))), [1, 0]);
        }
        assert!(subjects.find(Some("other"), 5, |_| true).is_empty());
        subjects.remove_rule("api");
        assert_eq!(found(u32::MAX - 5), 0);
    }

    /// An attacker names subjects without end. Those of another rule, and its newest ones, stay.
    #[test]
    fn a_flood_under_one_rule_displaces_its_own_oldest_subjects_only() {
        let (subjects, rules) = (RefusedSubjects::default(), rules());
        let counted = |user: u32| counted(&rules, user);
        let victim = counted(0);
        subjects.insert("login", "", victim, 0);
        for (floods, window) in [(1..=40_000, 1), (40_001..=80_000, 2), (80_001..=120_000, 2)] {
            for user in floods {
                subjects.insert("api", "", counted(user), window);
            }
        }
        let kept = subjects.find(None, 3, |_| true);
        assert!((MAX_SUBJECTS / 3..=MAX_SUBJECTS).contains(&kept.len()), "{}", kept.len());
        assert!(kept.iter().any(|one| one.counted.subject() == victim.subject() && &*one.rule == "login"));
        assert!(kept.iter().any(|one| one.counted == counted(120_000)), "the newest");
    }
}
