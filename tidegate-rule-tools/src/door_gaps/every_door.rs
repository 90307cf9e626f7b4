//! What is known of a rule when nobody says which front ends are used: where it never applies, and where all requests share one count.

use tidegate_rules::internals::{CompiledFile, CompiledRule, NEVER_APPLIES, compiled};
use tidegate_rules::{FrontDoor, Problem, Report, RuleFile};

use super::{DoorGap, GapEffect, RuleAtDoor, with_further};
use crate::lint::{UNAVAILABLE_AT_DOOR, list_names};

/// The [report](RuleFile::report), and what rules read and a front end never has, if they then never apply there or share one count. Each is
/// a note, since the front end may not be used; but a warning if the rule has `security: true` and never applies, or says that it is
/// meant for the front end.
pub fn report_for_every_door(file: &RuleFile) -> Report {
    let compiled = compiled(file);
    with_further(file, compiled.enabled_rules().flat_map(|rule| problems(compiled, rule)))
}

fn problems(file: &CompiledFile, rule: &CompiledRule) -> Vec<Problem> {
    let doors = FrontDoor::ALL.into_iter().filter(|door| rule.front_ends.contains(*door));
    let gaps = doors.flat_map(|door| RuleAtDoor { rule, door, matcher: &file.matcher }.gaps());
    let is_reported = |gap: &DoorGap| {
        matches!(gap.effect, GapEffect::NeverApplies | GapEffect::SharedCount | GapEffect::CoarserCount)
    };
    let mut alike: Vec<Vec<DoorGap>> = Vec::new();
    for gap in gaps.filter(is_reported) {
        let same = |group: &&mut Vec<DoorGap>| group[0].effect == gap.effect && group[0].source == gap.source;
        match alike.iter_mut().find(same) {
            Some(group) => group.push(gap),
            None => alike.push(vec![gap]),
        }
    }
    alike.iter().map(|gaps| problem(rule, gaps)).collect()
}

/// One problem for the same gap at several doors.
fn problem(rule: &CompiledRule, gaps: &[DoorGap]) -> Problem {
    let DoorGap { rule: id, source, effect, span, help, .. } = &gaps[0];
    let titles: Vec<&str> = gaps.iter().map(|gap| gap.door.title()).collect();
    let have = if gaps.len() == 1 { "has" } else { "have" };
    let doors = list_names(&titles).unwrap_or_default().replacen(", ", " and ", usize::from(gaps.len() == 2));
    let is_declared = !rule.front_ends.listed().is_empty();
    let (code, verb, consequence) = match effect {
        GapEffect::NeverApplies => (NEVER_APPLIES, "matches", "it never applies there"),
        GapEffect::CoarserCount => (UNAVAILABLE_AT_DOOR, "counts", "requests there are counted without it"),
        _ => (UNAVAILABLE_AT_DOOR, "counts", "all requests there share one count"),
    };
    let refused =
        if gaps.iter().any(DoorGap::is_error) { ", and a server with a gateway refuses the file" } else { "" };
    let message = format!("rule `{id}` {verb} by `{source}`, which {doors} never {have}: {consequence}{refused}");
    let is_warning = is_declared || (code == NEVER_APPLIES && rule.security);
    let new: fn(_, String, _) -> _ = if is_warning { Problem::warning } else { Problem::note };
    new(code, message, span.clone()).with_help(*help)
}
