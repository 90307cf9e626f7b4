//! `docs/attacks.md` states what the suite asserts.

use lab::attacks::{ATTACKS, FIGURES, promises, row_start};

const PAGE: &str = include_str!("../../../docs/attacks.md");

#[test]
fn docs_attacks_md_states_what_the_suite_asserts() {
    let (promised, _) = PAGE.split_once(FIGURES).expect("figures");
    assert!(promised == promises(), "docs/attacks.md is not what the suite says any more: `make attacks` writes it");
}

#[test]
fn docs_attacks_md_has_figures_for_every_attack_and_state() {
    let (_, figures) = PAGE.split_once(FIGURES).expect("figures");
    for (attack, state) in
        ATTACKS.into_iter().flat_map(|attack| attack.states().into_iter().map(move |state| (attack, state)))
    {
        let start = row_start(attack, &state.name());
        assert!(figures.contains(&start), "{start}: `make attacks` measures it");
    }
}
