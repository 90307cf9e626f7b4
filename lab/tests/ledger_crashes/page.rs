//! `docs/ledger-crashes.md` states what the suite asserts.

use lab::ledger_crashes::{Deployment, FIGURES, promises};

const PAGE: &str = include_str!("../../../docs/ledger-crashes.md");

#[test]
fn docs_ledger_crashes_md_states_what_the_suite_asserts() {
    let (promised, _) = PAGE.split_once(FIGURES).expect("figures");
    assert!(
        promised == promises(),
        "docs/ledger-crashes.md is not what the suite says any more: `make ledger-crashes` writes it"
    );
}

#[test]
fn docs_ledger_crashes_md_has_figures_for_both_kinds_of_stores() {
    let (_, figures) = PAGE.split_once(FIGURES).expect("figures");
    for deployment in Deployment::ALL {
        assert!(figures.contains(&format!("| {} |", deployment.name())), "`make ledger-crashes` measures it");
    }
}
