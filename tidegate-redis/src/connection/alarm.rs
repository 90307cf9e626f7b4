//! `Alarm`: a timer of the task that is set as rarely as possible, since most waits end before their deadline.

use std::future::Future;
use std::pin::Pin;
use std::task::Context;

use tokio::time::{Instant, Sleep};

use crate::timer;

/// A timer that is armed as rarely as possible.
pub(super) struct Alarm {
    sleep: Pin<Box<Sleep>>,
    /// `None` if it has fired or was never armed.
    armed: Option<Instant>,
}

impl Alarm {
    pub(super) fn new(now: Instant) -> Self {
        Self { sleep: Box::pin(timer::sleep_until(now)), armed: None }
    }

    /// Makes it fire at `at` or before. Returns false if it has fired already.
    pub(super) fn arm(&mut self, at: Instant, cx: &mut Context<'_>) -> bool {
        if self.armed.is_none_or(|armed| armed > at) {
            self.sleep.as_mut().reset(at);
            self.armed = Some(at);
        }
        self.sleep.as_mut().poll(cx).is_pending()
    }

    /// Whether it has fired since it was last armed.
    pub(super) fn has_fired(&mut self, cx: &mut Context<'_>) -> bool {
        let has_fired = self.armed.is_some() && self.sleep.as_mut().poll(cx).is_ready();
        if has_fired {
            self.armed = None;
        }
        has_fired
    }

    pub(super) fn disarm(&mut self) {
        self.armed = None;
    }
}
