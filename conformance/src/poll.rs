//! Waiting for other processes, which have no event to wait for: with pauses, so that a waiting test takes no CPU time from the others.

use std::time::Duration;

/// The pause between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The number of looks before a test fails: two minutes of pauses, whatever the machine is busy with.
const MAX_POLLS: u32 = 60_000;

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
