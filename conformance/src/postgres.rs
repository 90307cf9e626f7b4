//! `PostgresServer`: a real PostgreSQL for one test, on a free port, in its own directory, as an unprivileged user, stopped on drop. Its
//! processes are killed or stopped together.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal, getgid, getuid, kill_process};
use tempfile::TempDir;

use crate::process::Process;
use crate::server::{free_port, new_directory};

/// A running server with an empty database.
#[derive(Debug)]
pub struct PostgresServer {
    /// Ends before its directory is removed.
    process: Process,
    directory: TempDir,
    port: u16,
    settings: Vec<String>,
}

/// Settings of every server. It survives the end of a process, not of the machine, so it need not wait for the disk.
const SETTINGS: [&str; 9] = [
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
    "fsync=off",
    "synchronous_commit=on",
    "full_page_writes=off",
    "shared_buffers=32MB",
    "max_connections=100",
    // A killed server leaves nothing outside its directory.
    "dynamic_shared_memory_type=mmap",
    "logging_collector=off",
];

const USER: &str = "tidegate";

impl PostgresServer {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with further settings, as in `work_mem=1MB`.
    pub fn start_with(settings: &[&str]) -> Self {
        Self::start_in(new_directory(), settings)
    }

    /// Starts a server with further settings whose files are in the temporary directory, which is usually on a disk.
    pub fn start_on_disk(settings: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), settings)
    }

    fn start_in(directory: TempDir, settings: &[&str]) -> Self {
        initialize(directory.path());
        let settings: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let port = free_port();
        let mut server = Self { process: run(directory.path(), port, &settings), directory, port, settings };
        if !server.wait_until_ready() {
            // Another process may have taken the port before the server bound it.
            server.start_again(20, free_port);
        }
        server
    }

    /// Starts a killed server again, on the same port and with its files.
    pub fn restart(&mut self) {
        // Processes of the killed server may still use its memory: then it refuses to start.
        let port = self.port;
        self.start_again(1_000, || port);
    }

    fn start_again(&mut self, attempts: u32, port: impl Fn() -> u16) {
        for _ in 0..attempts {
            self.port = port();
            self.process = run(self.directory.path(), self.port, &self.settings);
            if self.wait_until_ready() {
                return;
            }
        }
        panic!("PostgreSQL does not start: {}", self.process.output());
    }

    pub fn url(&self) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/postgres", self.port)
    }

    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Runs statements, and returns what they print: rows on lines, columns separated by `|`.
    pub fn execute(&self, sql: &str) -> String {
        let mut command = Command::new(program("psql"));
        command.args(["--no-psqlrc", "--quiet", "--no-align", "--tuples-only", "--set=ON_ERROR_STOP=1"]);
        let output = command.args(["--dbname", &self.url(), "--command", sql]).output().expect("psql starts");
        assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    /// Its process, whose children are those of its connections.
    pub const fn process(&self) -> &Process {
        &self.process
    }

    /// Kills the server and the processes of its connections with SIGKILL. These would otherwise end what they have begun.
    pub fn kill(&mut self) {
        let children = self.stop();
        self.process.kill();
        send(&children, Signal::KILL);
    }

    /// Stops all processes with SIGSTOP.
    pub fn hang(&self) {
        self.stop();
    }

    pub fn resume(&self) {
        send(&self.process.children(), Signal::CONT);
        self.process.resume();
    }

    /// Stops the server first, so that it starts no further processes. Returns these.
    fn stop(&self) -> Vec<Pid> {
        self.process.signal(Signal::STOP);
        let children = self.process.children();
        send(&children, Signal::STOP);
        children
    }

    /// Waits until it takes connections or exits. Its pid file says so, so no server of another test is taken for it.
    fn wait_until_ready(&mut self) -> bool {
        let file = self.directory.path().join("data/postmaster.pid");
        let look = |process: &Process| {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            let mut lines = text.lines().map(str::trim);
            let is_ready = lines.next() == Some(&process.id().to_string()) && lines.any(|line| line == "ready");
            is_ready.then_some(())
        };
        self.process.wait_for(look).is_some()
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        // A stopped process would not end.
        self.resume();
    }
}

fn run(directory: &Path, port: u16, settings: &[String]) -> Process {
    let mut command = unprivileged("postgres");
    command.arg("-D").arg(directory.join("data")).args(["-p", &port.to_string()]).current_dir(directory);
    for setting in SETTINGS.into_iter().chain(settings.iter().map(String::as_str)) {
        command.args(["-c", setting]);
    }
    // An immediate shutdown ends the processes of its connections as well.
    Process::start(&mut command).with_end_signal(Signal::QUIT)
}

fn send(processes: &[Pid], signal: Signal) {
    for process in processes {
        let _ = kill_process(*process, signal);
    }
}

fn initialize(directory: &Path) {
    let (user, group) = unprivileged_user();
    chown(directory, Some(user), Some(group)).unwrap();
    let mut command = unprivileged("initdb");
    command.arg("-D").arg(directory.join("data")).current_dir(directory);
    command.args(["--no-sync", "--no-locale", "--encoding=UTF8", "--auth=trust", "--username", USER]);
    let output = command.output().expect("initdb starts");
    assert!(output.status.success(), "initdb: {}", String::from_utf8_lossy(&output.stderr));
}

/// A command that does not run as root, which PostgreSQL refuses.
fn unprivileged(name: &str) -> Command {
    let (user, group) = unprivileged_user();
    let mut command = Command::new(program(name));
    if getuid().is_root() {
        command.uid(user).gid(group);
    }
    command
}

/// This user, or the one of Debian's package, or `nobody` if this is root.
fn unprivileged_user() -> (u32, u32) {
    if !getuid().is_root() {
        return (getuid().as_raw(), getgid().as_raw());
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let line = users.lines().find_map(|line| line.strip_prefix("postgres:"));
    let mut numbers = line.unwrap_or_default().split(':').skip(1).map(|number| number.parse().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(user), Some(group)) => (user, group),
        _ => (65_534, 65_534),
    }
}

/// A program of the newest PostgreSQL that is installed.
fn program(name: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut programs: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin").join(name)))
        })
        .filter(|(_, program)| program.exists())
        .collect();
    programs.sort();
    programs.pop().expect("PostgreSQL in /usr/lib/postgresql; `make test` installs it").1
}
