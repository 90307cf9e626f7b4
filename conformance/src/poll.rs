//! Waiting for other processes, which have no event to wait for: with pauses, so that a waiting test takes no CPU time from the others.
//! The bounds end only a hang: no promise is about time.

use std::time::Duration;

/// The pause between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The number of looks before a test fails: two minutes of pauses, whatever the machine is busy with.
const MAX_POLLS: u32 = 60_000;

/// Looks for one condition.
#[derive(Debug)]
pub struct Polling {
    condition: String,
    polls: u32,
}

impl Polling {
    /// Looks until `condition`, in words.
    pub fn until(condition: impl Into<String>) -> Self {
        Self { condition: condition.into(), polls: 0 }
    }

    /// Waits for the next look, and panics with `details` if there were too many.
    pub async fn pause(&mut self, details: impl FnOnce() -> String) {
        assert!(!self.is_over(), "{}: not within {MAX_POLLS} polls\n{}", self.condition, details());
        self.polls += 1;
        pause_task().await;
    }

    /// Whether there were too many looks.
    pub const fn is_over(&self) -> bool {
        self.polls >= MAX_POLLS
    }
}

/// Looks until `look` returns a value.
pub async fn wait_for_some<T>(condition: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let mut polling = Polling::until(condition);
    loop {
        if let Some(found) = look().await {
            return found;
        }
        polling.pause(String::new).await;
    }
}

/// Blocks this thread until `condition` holds, and panics with `problem` if it never does.
pub fn wait_for(problem: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..MAX_POLLS {
        if condition() {
            return;
        }
        pause();
    }
    panic!("{problem}");
}

/// Blocks this thread until the next look.
#[expect(clippy::disallowed_methods, reason = "the only pause: there is no event of another process to wait for")]
pub fn pause() {
    std::thread::sleep(POLL_INTERVAL);
}

/// Lets other tasks run until the next look.
pub async fn pause_task() {
    tokio::time::sleep_until(tokio::time::Instant::now() + POLL_INTERVAL).await;
}
