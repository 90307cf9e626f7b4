//! `docs/faults.md` states what the suite asserts.

use lab::faults::{FAULTS, FIGURES, POLICIES, promises};

const PAGE: &str = include_str!("../../../docs/faults.md");

#[test]
fn docs_faults_md_states_what_the_suite_asserts() {
    let (promised, _) = PAGE.split_once(FIGURES).expect("figures");
    assert!(promised == promises(), "docs/faults.md is not what the suite says any more: `make faults` writes it");
}

#[test]
fn docs_faults_md_has_figures_for_every_fault_and_policy() {
    let (_, figures) = PAGE.split_once(FIGURES).expect("figures");
    for (fault, policy) in FAULTS.iter().flat_map(|fault| POLICIES.map(|policy| (fault.name(), policy.as_str()))) {
        assert!(figures.contains(&format!("| {fault} | `{policy}` |")), "{fault}, {policy}: `make faults` measures it");
    }
}
