//! `DropGuard`: does something when it is dropped, unless it is disarmed. For futures that callers may drop.

/// Calls a function on drop unless it is disarmed.
pub(super) struct DropGuard<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> DropGuard<F> {
    #[inline(always)]
    pub(super) const fn new(on_drop: F) -> Self {
        Self(Some(on_drop))
    }

    #[inline(always)]
    pub(super) fn disarm(mut self) {
        self.0 = None;
    }
}

impl<F: FnOnce()> Drop for DropGuard<F> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(on_drop) = self.0.take() {
            on_drop();
        }
    }
}
