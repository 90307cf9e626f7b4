//! A program that runs for one test: waited for, killed when dropped. What it says is kept for the test that fails.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// How often is looked whether something has come about, and how often at most: half a minute in all.
const PAUSE: Duration = Duration::from_millis(10);
const ATTEMPTS: u32 = 3000;

/// A program that runs.
pub(crate) struct Process {
    child: Child,
    log: PathBuf,
}

/// A program of the repository's own tools, or of the path.
pub(crate) fn program(name: &str) -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/bin").join(name);
    if own.exists() { own } else { PathBuf::from(name) }
}

/// A port that was free a moment ago, and is given to nobody else in this process.
pub(crate) fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        if GIVEN.lock().unwrap().insert(port) {
            return port;
        }
    }
}

/// Looks again and again until something has come about.
pub(crate) async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let mut pause = tokio::time::interval(PAUSE);
    for _ in 0..ATTEMPTS {
        if let Some(found) = look().await {
            return found;
        }
        pause.tick().await;
    }
    panic!("{what}: not within {ATTEMPTS} looks")
}

impl Process {
    /// Starts a program in a directory, where its log is kept too.
    pub(crate) fn start(command: &mut Command, directory: &Path, name: &str) -> Self {
        let log = directory.join(format!("{name}.log"));
        let file = File::create(&log).unwrap();
        let child = command
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap_or_else(|error| panic!("{name} does not start ({error}); `make tools` installs it"));
        Self { child, log }
    }

    /// Whether it has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// What it has said so far.
    pub(crate) fn said(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap()).into_owned()
    }

    /// Stops it in the middle of whatever it does, and returns once all of it stands still.
    pub(crate) fn hang(&self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP).unwrap();
        let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "{status:?}");
    }

    /// Ends it as a crash would.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
