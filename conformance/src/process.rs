//! `Process`: a program that runs for one test and is killed on drop. Its output is kept for failure messages.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// Interval and number of polls for a condition: half a minute in all.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
const MAX_POLLS: u32 = 3000;

/// A running program.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
}

/// The path of a program in `.tools/bin`, or its name in `PATH`.
pub fn program(name: &str) -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/bin").join(name);
    if own.exists() { own } else { PathBuf::from(name) }
}

/// Polls until `look` returns a value.
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let mut pause = tokio::time::interval(POLL_INTERVAL);
    for _ in 0..MAX_POLLS {
        if let Some(found) = look().await {
            return found;
        }
        pause.tick().await;
    }
    panic!("{what}: not within {MAX_POLLS} polls")
}

impl Process {
    /// Starts a program in `directory`, which also gets its log.
    pub fn start(command: &mut Command, directory: &Path, name: &str) -> Self {
        let log = directory.join(format!("{name}.log"));
        let file = File::create(&log).unwrap();
        let child = command
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap_or_else(|error| panic!("{name} does not start ({error}); `make tools tools-prove` installs it"));
        Self { child, log }
    }

    /// Whether it has exited.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Its output so far.
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap()).into_owned()
    }

    /// Stops it with SIGSTOP, and returns once all its threads are stopped.
    pub fn hang(&self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP).unwrap();
        let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "{status:?}");
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
