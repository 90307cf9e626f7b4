//! `Owed`: what the parts of a plan took so far, and its way back. It does not know whether the plan passes.

use tidegate::StoreError;
use tidegate::spi::algorithm::Op;
use tidegate::spi::{Adjustment, Plan, Store, Verdict};
use tokio::task::JoinHandle;

use crate::error::Failed;
use crate::flood;
use crate::store::RedisStore;

/// What was taken and has to be given back unless the whole plan passes: also when the caller stops waiting.
pub(super) struct Owed<'s, 'r> {
    store: &'s RedisStore,
    taken: Vec<Adjustment<'r>>,
}

impl<'s, 'r> Owed<'s, 'r> {
    /// Nothing yet.
    pub(super) const fn nothing(store: &'s RedisStore) -> Self {
        Self { store, taken: Vec::new() }
    }

    /// Adds what `part` took.
    pub(super) fn add(&mut self, part: &Plan<'r>, verdict: &Verdict) {
        for (index, (check, judged)) in part.checks().iter().zip(&verdict.judged).enumerate() {
            if judged.consumed {
                let cost = check.cost().saturating_mul(verdict.granted.max(1));
                let taken = Adjustment::of(check, Op::Refund { cost, place: judged.place });
                self.taken.push(if judged.overflowed {
                    // A bucket that is shared is not forgotten early, as a stranger is.
                    Adjustment { key: flood::overflow(part, index), stranger: None, ..taken }
                } else {
                    taken
                });
            }
        }
    }

    /// The plan has passed: it is not owed any more.
    pub(super) fn settle(&mut self) {
        self.taken.clear();
    }

    /// Gives everything back; whether that worked. What fails is not tried again, since it may have been carried out.
    pub(super) async fn give_back(&mut self) -> bool {
        let taken = std::mem::take(&mut self.taken);
        taken.is_empty() || self.store.adjust(&taken).await.is_ok()
    }

    /// Gives everything back in a task of its own.
    pub(super) fn give_back_beside(&mut self) -> Option<JoinHandle<Result<(), StoreError>>> {
        self.store.adjust_beside(&std::mem::take(&mut self.taken))
    }

    pub(super) async fn give_back_after(&mut self, failed: Failed) -> Failed {
        let Failed { error, torn } = failed;
        let clean = self.give_back().await;
        Failed { error: if clean { error } else { error.possibly_applied() }, torn: torn && clean }
    }
}

impl Drop for Owed<'_, '_> {
    fn drop(&mut self) {
        self.store.adjust_soon(&self.taken);
    }
}
