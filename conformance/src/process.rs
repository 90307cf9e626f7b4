//! `Process`: a program that runs for one test or measurement, with its output and its CPU time. It ends on drop.

use std::fs::{self, File};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::poll;

#[derive(Debug)]
pub struct Process {
    child: Child,
    /// A file without a name, so that nothing is left of it.
    log: File,
    end_signal: Signal,
}

/// The path of a program in `.tools/bin`, or its name in `PATH`.
pub fn program(name: &str) -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/bin").join(name);
    if own.exists() { own } else { PathBuf::from(name) }
}

impl Process {
    /// Starts a program, which must be installed.
    pub fn start(command: &mut Command) -> Self {
        let started = Self::try_start(command);
        let name = || command.get_program().display();
        started
            .unwrap_or_else(|error| panic!("{} does not start ({error}); `make tools tools-prove` installs it", name()))
    }

    /// Starts a program. It inherits the CPU affinity of the calling thread.
    pub fn try_start(command: &mut Command) -> io::Result<Self> {
        let log = tempfile::tempfile()?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?);
        Ok(Self { child: command.spawn()?, log, end_signal: Signal::KILL })
    }

    /// The same process, which ends by this signal, so that it can end its own processes.
    pub fn with_end_signal(mut self, signal: Signal) -> Self {
        self.end_signal = signal;
        self
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Its output and its errors so far.
    pub fn output(&self) -> String {
        let mut bytes = vec![0; usize::try_from(self.log.metadata().unwrap().len()).unwrap()];
        let length = self.log.read_at(&mut bytes, 0).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    /// The first complete line of output that begins with `start`.
    pub fn find_line(&self, start: &str) -> Option<String> {
        let output = self.output();
        output.split_inclusive('\n').find(|line| line.starts_with(start) && line.ends_with('\n')).map(str::to_owned)
    }

    /// Looks until there is something, or until the process has exited.
    pub fn wait_for<T>(&mut self, mut look: impl FnMut(&Self) -> Option<T>) -> Option<T> {
        loop {
            let has_ended = self.has_ended();
            match look(self) {
                None if !has_ended => poll::pause(),
                found => return found,
            }
        }
    }

    /// Waits for the line of output that begins with `start`. The error is the output of a process that exits before.
    pub fn wait_for_line(&mut self, start: &str) -> Result<String, String> {
        self.wait_for(|process| process.find_line(start)).ok_or_else(|| self.output())
    }

    /// Waits until the address accepts connections. The error is the output of a process that exits before.
    pub fn wait_until_listening(&mut self, address: SocketAddr) -> Result<(), String> {
        self.wait_for(|_| TcpStream::connect(address).ok()).map(drop).ok_or_else(|| self.output())
    }
}

/// Signals, and CPU time
impl Process {
    /// Sends a signal. The process may have ended.
    pub fn signal(&self, signal: Signal) {
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// Stops it with SIGSTOP, and returns once all its threads are stopped: connections stay open, nothing is answered.
    pub fn hang(&self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP).unwrap();
        let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "{status:?}");
    }

    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    pub fn kill(&mut self) {
        self.end_with(Signal::KILL);
    }

    /// Ends it with this signal, and waits until it has ended.
    pub fn end_with(&mut self, signal: Signal) {
        if !self.has_ended() {
            self.signal(signal);
            self.child.wait().unwrap();
        }
    }

    /// The processes that it has started.
    pub fn children(&self) -> Vec<Pid> {
        let file = format!("/proc/{0}/task/{0}/children", self.id());
        let children = fs::read_to_string(file).unwrap_or_default();
        children.split_whitespace().filter_map(|child| Pid::from_raw(child.parse().ok()?)).collect()
    }

    /// The CPU time of all threads of the process and of its direct children.
    pub fn cpu_time(&self) -> io::Result<Duration> {
        let children = self.children().into_iter().map(|child| child.as_raw_nonzero().get().unsigned_abs());
        // A child may end meanwhile.
        let nanos_of_children: u64 = children.filter_map(|child| thread_nanos(child).ok()).sum();
        Ok(Duration::from_nanos(thread_nanos(self.id())? + nanos_of_children))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end_with(self.end_signal);
    }
}

/// Nanoseconds of CPU time of all threads of a process.
fn thread_nanos(process: u32) -> io::Result<u64> {
    let threads = fs::read_dir(format!("/proc/{process}/task"))?;
    let nanos = threads.map(|thread| {
        let status = fs::read_to_string(thread?.path().join("schedstat"))?;
        let nanos = status.split(' ').next().and_then(|nanos| nanos.parse::<u64>().ok());
        nanos.ok_or_else(|| io::Error::other("schedstat does not begin with a number"))
    });
    nanos.sum()
}
