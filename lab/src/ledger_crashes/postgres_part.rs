//! `PostgresPart`: PostgreSQL with all its processes, which are killed or stopped together.

use rustix::process::{Pid, Signal, kill_process};

use conformance::postgres::PostgresServer;

/// A running PostgreSQL.
pub(super) struct PostgresPart {
    server: PostgresServer,
    stopped: Vec<Pid>,
}

impl PostgresPart {
    pub(super) fn start() -> Self {
        Self { server: PostgresServer::start(), stopped: Vec::new() }
    }

    pub(super) fn url(&self) -> String {
        self.server.url()
    }

    /// Kills the server and the processes of its connections with SIGKILL. These would otherwise end what they have begun.
    pub(super) fn kill(&mut self) {
        let children = self.stop_all();
        self.server.kill9();
        for child in children {
            signal(child, Signal::KILL);
        }
        self.stopped.clear();
    }

    /// Starts it after a kill.
    pub(super) fn restart(&mut self) {
        self.server.restart();
    }

    /// Stops all processes with SIGSTOP.
    pub(super) fn hang(&mut self) {
        self.stop_all();
    }

    /// Continues all processes.
    pub(super) fn resume(&mut self) {
        for process in self.stopped.drain(..) {
            signal(process, Signal::CONT);
        }
    }

    /// Stops the server first, so that it starts no further processes. Returns these.
    fn stop_all(&mut self) -> Vec<Pid> {
        let server = self.server_pid();
        signal(server, Signal::STOP);
        let children = children(server);
        for child in &children {
            signal(*child, Signal::STOP);
        }
        self.stopped.push(server);
        self.stopped.extend(&children);
        children
    }

    fn server_pid(&self) -> Pid {
        let file = self.server.execute("SELECT pg_read_file('postmaster.pid')");
        pid(file.lines().next().unwrap_or_default()).expect("the pid of PostgreSQL")
    }
}

impl Drop for PostgresPart {
    fn drop(&mut self) {
        // A stopped process would not end.
        self.resume();
    }
}

fn pid(text: &str) -> Option<Pid> {
    Pid::from_raw(text.trim().parse().ok()?)
}

/// It may have ended by itself.
fn signal(process: Pid, signal: Signal) {
    let _ = kill_process(process, signal);
}

/// The processes that `parent` has started, as `/proc` lists them.
fn children(parent: Pid) -> Vec<Pid> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_child = |stat: String| {
        // The name of the program is in parentheses, and may contain anything. The state and the parent follow.
        let (_, rest) = stat.rsplit_once(')')?;
        (pid(rest.split_whitespace().nth(1)?)? == parent).then_some(())
    };
    let own = processes.filter_map(|entry| {
        let process = pid(entry.file_name().to_str()?)?;
        is_child(std::fs::read_to_string(entry.path().join("stat")).ok()?)?;
        Some(process)
    });
    own.collect()
}
