//! Interleaved rounds: a disturbance of the machine affects all contenders, and the best round is the least disturbed.

/// Something to measure: each call is one round.
pub(crate) type Contender<'c, M> = Box<dyn FnMut() -> M + 'c>;

/// Runs all contenders in turn, `rounds` times, and returns the best round of each.
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
