//! `LogWriter`: a queue of log lines in front of stderr, so that no request waits for a reader of the log.
//!
//! A thread writes the lines. While the reader is slower than the server, at most [`MAX_QUEUED_LINES`] wait; further lines are
//! dropped, and an event reports how many.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, PoisonError};
use std::time::Duration;

use tidegate::sync::{Mutex, MutexGuard};
use tracing_subscriber::fmt::MakeWriter;

/// Lines that wait to be written before further ones are dropped.
const MAX_QUEUED_LINES: usize = 4096;

/// Longest wait until queued lines are written.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Appends lines to the queue. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogWriter(Arc<Queue>);

/// Waits for the queue to be written when it is dropped.
#[derive(Debug)]
pub(crate) struct FlushGuard(LogWriter);

#[derive(Debug, Default)]
struct Queue {
    lines: Mutex<Lines>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Lines {
    queued: VecDeque<Vec<u8>>,
    dropped: u64,
    /// Whether the thread has lines that it has not written yet.
    is_writing: bool,
}

impl LogWriter {
    /// Starts the thread that writes to stderr.
    pub(crate) fn start() -> io::Result<(Self, FlushGuard)> {
        // A descriptor of its own: the program holds the lock of `io::stderr` for as long as it runs.
        let stderr = File::from(io::stderr().as_fd().try_clone_to_owned()?);
        let writer = Self::default();
        let background = writer.clone();
        std::thread::Builder::new().name("log".to_owned()).spawn(move || background.write_to(stderr))?;
        Ok((writer.clone(), FlushGuard(writer)))
    }

    fn write_to(&self, mut output: impl Write) {
        loop {
            let (lines, dropped) = self.take();
            for line in lines {
                // A log that cannot be written must not stop the server.
                let _ = output.write_all(&line);
            }
            if dropped > 0 {
                tracing::warn!(target: "tidegate::log", dropped, "log lines dropped: stderr was read too slowly");
            }
        }
    }

    /// Waits for lines, and returns them with the number that was dropped before.
    fn take(&self) -> (VecDeque<Vec<u8>>, u64) {
        let mut lines = self.lock();
        lines.is_writing = false;
        self.0.changed.notify_all();
        let is_empty = |lines: &mut Lines| lines.queued.is_empty();
        let mut lines = self.0.changed.wait_while(lines, is_empty).unwrap_or_else(PoisonError::into_inner);
        lines.is_writing = true;
        (std::mem::take(&mut lines.queued), std::mem::take(&mut lines.dropped))
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.0.lines.lock()
    }
}

/// The formatter writes each event by one call.
impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut lines = self.lock();
        if lines.queued.len() < MAX_QUEUED_LINES {
            lines.queued.push_back(line.to_vec());
            self.0.changed.notify_all();
        } else {
            lines.dropped += 1;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for LogWriter {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

impl FlushGuard {
    /// Waits until all lines are written, at most [`FLUSH_TIMEOUT`].
    pub(crate) fn flush(&self) {
        let is_busy = |lines: &mut Lines| lines.is_writing || !lines.queued.is_empty();
        let _ = self.0.0.changed.wait_timeout_while(self.0.lock(), FLUSH_TIMEOUT, is_busy);
    }
}

impl Drop for FlushGuard {
    fn drop(&mut self) {
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_queue_are_dropped_and_counted() {
        let mut writer = LogWriter::default();
        for line in 0..MAX_QUEUED_LINES + 7 {
            writer.write_all(format!("{line}\n").as_bytes()).unwrap();
        }
        let (lines, dropped) = writer.take();
        assert_eq!((lines.len(), dropped), (MAX_QUEUED_LINES, 7));
        assert_eq!(lines.front().unwrap(), b"0\n");
    }

    #[test]
    fn the_guard_waits_until_every_line_is_written() {
        #[derive(Clone, Default)]
        struct LogBuffer(Arc<Mutex<Vec<u8>>>);
        impl Write for LogBuffer {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().write(bytes)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (mut writer, page) = (LogWriter::default(), LogBuffer::default());
        let (background, output) = (writer.clone(), page.clone());
        for _ in 0..100 {
            writer.write_all(b"a line\n").unwrap();
        }
        std::thread::spawn(move || background.write_to(output));
        drop(FlushGuard(writer));
        assert_eq!(page.0.lock().len(), 700);
    }
}
