//! Taking turns: whatever disturbs the machine for a while disturbs everybody, and the best round is the least disturbed.

/// Someone to be measured: each call is one round.
pub(crate) type Contender<'c, M> = Box<dyn FnMut() -> M + 'c>;

/// Lets all contenders run in turn, `rounds` times, and keeps the round of each that `beats` its others.
pub(crate) fn best_of<M>(rounds: usize, contenders: &mut [Contender<'_, M>], beats: impl Fn(&M, &M) -> bool) -> Vec<M> {
    let mut best: Vec<M> = contenders.iter_mut().map(|contender| contender()).collect();
    for _ in 1..rounds {
        for (best, contender) in best.iter_mut().zip(contenders.iter_mut()) {
            let round = contender();
            if beats(&round, best) {
                *best = round;
            }
        }
    }
    best
}
