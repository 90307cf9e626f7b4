//! `GrantGuard`: ends a grant when it is dropped, unless it ends before.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use crate::grant::{Ending, Grant, GrantError};
use crate::store::Store;
use crate::{Limiter, Timer};

/// A grant that ends in the background when the guard is dropped: when a handler returns early, panics, or its client goes away.
///
/// Nothing renews it meanwhile; [`Limiter::hold`] and [`HeldLeases`](crate::grants::HeldLeases) do that for slots.
#[must_use = "dropping it ends the grant"]
pub struct GrantGuard<S: Store> {
    limiter: Arc<Limiter<S>>,
    grant: Grant,
    ending: Ending,
}

impl<S: Store> GrantGuard<S> {
    /// Ends `grant` on its drop with `ending`.
    pub const fn new(limiter: Arc<Limiter<S>>, grant: Grant, ending: Ending) -> Self {
        Self { limiter, grant, ending }
    }

    /// What ends on the drop.
    pub const fn grant(&self) -> &Grant {
        &self.grant
    }

    /// Ends the grant. Once it is called, the grant ends in this way, even if the future is dropped. After a failure of the store, it is tried
    /// again in the background.
    pub fn end(mut self, ending: Ending) -> impl Future<Output = Result<(), GrantError>> + Send
    where
        S: 'static,
    {
        self.ending = ending;
        self.end_now()
    }

    /// Leaves it open, for another process that ends it. Its slots and holds run out otherwise.
    pub fn keep(mut self) -> Grant {
        std::mem::take(&mut self.grant)
    }

    /// Waits for a delay, and keeps the grant once it is over.
    pub async fn keep_after(self, delay: std::time::Duration, timer: &(impl Timer + ?Sized)) -> Grant {
        timer.sleep(delay).await;
        self.keep()
    }
}

impl<S: Store> GrantGuard<S> {
    async fn end_now(mut self) -> Result<(), GrantError> {
        if self.grant.parts().is_empty() {
            return Ok(());
        }
        let result = self.limiter.end(&mut self.grant, &self.ending).await;
        if !matches!(result, Err(GrantError::Store(_))) {
            self.grant = Grant::default();
        }
        result
    }
}

impl<S: Store> Drop for GrantGuard<S> {
    fn drop(&mut self) {
        if !self.grant.parts().is_empty() {
            self.limiter.spawn_end(std::mem::take(&mut self.grant), &self.ending);
        }
    }
}

impl<S: Store> fmt::Debug for GrantGuard<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrantGuard").field("grant", &self.grant).finish_non_exhaustive()
    }
}
