//! `Server`: a real redis-server or valkey-server for one test, on a free port, in its own directory, killed on drop.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use redis::{Connection, FromRedisValue};
use tempfile::TempDir;
use tidegate::{Clock, SystemClock};
use tidegate_redis::{RedisOptions, RedisStore};

use crate::poll;
use crate::process::{Process, program};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Redis,
    Valkey,
}

/// Both kinds, for tests that must pass on each.
pub const KINDS: [Kind; 2] = [Kind::Redis, Kind::Valkey];

#[derive(Debug)]
pub struct Server {
    /// Ends before its directory is removed.
    process: Process,
    kind: Kind,
    arguments: Vec<String>,
    prepare: Preparation,
    port: u16,
    directory: TempDir,
    password: Option<String>,
    /// Whether it is a cluster of one.
    alone_in_cluster: bool,
}

/// What the command of a server has beside its arguments. It gets the directory of the server.
type Preparation = fn(&mut Command, &Path);

impl Kind {
    pub const fn program(self) -> &'static str {
        match self {
            Self::Redis => "redis-server",
            Self::Valkey => "valkey-server",
        }
    }
}

impl Server {
    /// Starts a server without persistence.
    pub fn start(kind: Kind) -> Self {
        Self::start_with(kind, &[])
    }

    pub fn start_with(kind: Kind, arguments: &[&str]) -> Self {
        Self::start_prepared(kind, arguments, |_, _| {})
    }

    /// Starts a server with further arguments in a process group of its own: Ctrl-C goes to this process, which then stops the server.
    pub fn start_in_own_group(kind: Kind, arguments: &[&str]) -> Self {
        Self::start_prepared(kind, arguments, |command, _| _ = command.process_group(0))
    }

    /// Starts a server whose wall clock the test [moves](Self::move_clock).
    pub fn start_with_clock(kind: Kind) -> Self {
        Self::start_prepared(kind, &[], fake_time)
    }

    /// Starts a cluster of one server: it owns every slot, and refuses a script with keys of two slots.
    pub fn start_alone_in_cluster(kind: Kind) -> Self {
        let mut server = Self::start_in_cluster(kind);
        server.alone_in_cluster = true;
        server.command::<()>("CLUSTER ADDSLOTSRANGE 0 16383");
        server.wait_for("CLUSTER", "INFO", "cluster_state:ok");
        server
    }

    /// Starts a server in cluster mode that has joined no cluster yet.
    pub fn start_in_cluster(kind: Kind) -> Self {
        let bus = free_port().to_string();
        let mode = ["--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-node-timeout", "1000"];
        let quick = ["--repl-diskless-sync-delay", "0", "--cluster-replica-validity-factor", "0"];
        Self::start_with(kind, &[&mode[..], &quick[..]].concat())
    }

    pub fn start_sentinel(kind: Kind, settings: &[String]) -> Self {
        let arguments = |directory: &Path, port: u16| {
            let lines = format!("port {port}\nbind 127.0.0.1\n{}\n", settings.join("\n"));
            std::fs::write(directory.join("sentinel.conf"), lines).unwrap();
            ["sentinel.conf", "--sentinel"].map(str::to_owned).to_vec()
        };
        Self::start_on_free_port(kind, arguments, |_, _| {})
    }

    fn start_prepared(kind: Kind, arguments: &[&str], prepare: Preparation) -> Self {
        let arguments = |_: &Path, port: u16| {
            let port = port.to_string();
            let standard =
                ["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--maxmemory", "1gb"];
            standard.iter().chain(arguments).map(|argument| (*argument).to_owned()).collect()
        };
        Self::start_on_free_port(kind, arguments, prepare)
    }

    /// Starts a server whose arguments depend on its directory and port.
    fn start_on_free_port(kind: Kind, arguments: impl Fn(&Path, u16) -> Vec<String>, prepare: Preparation) -> Self {
        let start = || {
            let (directory, port) = (new_directory(), free_port());
            let arguments = arguments(directory.path(), port);
            let password = arguments.iter().position(|argument| *argument == "--requirepass");
            let password = password.and_then(|at| arguments.get(at + 1)).cloned();
            let process = run(kind, directory.path(), &arguments, prepare);
            let alone_in_cluster = false;
            let mut server = Self { process, kind, arguments, prepare, port, directory, password, alone_in_cluster };
            server.wait_until_up().then_some(server)
        };
        // Another process may take the port before the server binds it.
        (0..20).find_map(|_| start()).expect("a server starts within twenty attempts")
    }

    /// Waits until it answers or exits.
    fn wait_until_up(&mut self) -> bool {
        let port = self.port;
        let stream = self.process.wait_for(|_| TcpStream::connect(("127.0.0.1", port)).ok());
        stream.is_some_and(|mut stream| self.is_at(&mut stream))
    }

    /// Whether this server answers there: a server of another test may have taken the port.
    fn is_at(&self, stream: &mut TcpStream) -> bool {
        if stream.write_all(b"INFO server\r\n").is_err() {
            return false;
        }
        let (mut response, mut more) = (Vec::new(), [0; 4096]);
        while let Ok(read @ 1..) = stream.read(&mut more) {
            response.extend_from_slice(&more[..read]);
            let text = String::from_utf8_lossy(&response);
            if text.starts_with("-NOAUTH") {
                return true; // it wants a password, and is up
            }
            if let Some((id, _)) = text.split_once("process_id:").and_then(|(_, rest)| rest.split_once('\r')) {
                return id == self.process.id().to_string();
            }
        }
        false
    }

    /// Sends a command, which must succeed: words that are separated by spaces.
    pub fn command<T: FromRedisValue>(&self, words: &str) -> T {
        send(&mut self.connection(), words)
    }

    /// The number after `field` in the lines of the reply to a command such as `INFO memory`; 0 if it is not there.
    pub fn number(&self, command: &str, field: &str) -> u64 {
        let reply: String = self.command(command);
        let value = reply.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
        value.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default().parse().unwrap_or(0)
    }

    /// Repeats `command` until its reply contains `text`.
    pub fn wait_for(&self, command: &str, argument: &str, text: &str) {
        let (mut connection, words) = (self.connection(), format!("{command} {argument}"));
        let says = || send::<String>(&mut connection, &words).contains(text);
        poll::wait_for(&format!("{words} never says {text}"), says);
    }

    pub fn errors(&self, code: &str) -> u64 {
        self.number("INFO errorstats", &format!("errorstat_{code}:count="))
    }

    pub fn calls(&self, command: &str) -> u64 {
        self.number("INFO commandstats", &format!("cmdstat_{command}:calls="))
    }

    pub fn bus(&self) -> u16 {
        let (_, port): (String, u16) = self.command("CONFIG GET cluster-port");
        port
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        if self.alone_in_cluster {
            return format!("redis+cluster://127.0.0.1:{}", self.port);
        }
        self.plain_url()
    }

    /// The URL of a plain connection.
    pub fn plain_url(&self) -> String {
        match &self.password {
            Some(password) => format!("redis://:{password}@127.0.0.1:{}", self.port),
            None => self.bare_url(),
        }
    }

    /// The URL without the password.
    pub fn bare_url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub const fn process(&self) -> &Process {
        &self.process
    }

    pub async fn store(&self) -> RedisStore {
        self.store_with(RedisOptions::new()).await
    }

    pub async fn store_with(&self, options: RedisOptions) -> RedisStore {
        RedisStore::connect_with(&self.url(), options).await.unwrap()
    }

    /// Opens a plain connection to it.
    pub fn connection(&self) -> Connection {
        redis::Client::open(self.plain_url()).unwrap().get_connection().unwrap()
    }
}

/// Faults
impl Server {
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Restarts a killed server on the same port, with its files and further arguments.
    pub fn restart_with(&mut self, arguments: &[&str]) {
        self.kill();
        let further = arguments.iter().map(|argument| (*argument).to_owned());
        let all: Vec<_> = self.arguments.iter().cloned().chain(further).collect();
        for _ in 0..20 {
            self.process = run(self.kind, self.directory.path(), &all, self.prepare);
            if self.wait_until_up() {
                return;
            }
        }
        panic!("{:?} does not start again at port {}", self.kind, self.port);
    }

    /// Stops it with SIGSTOP: connections stay open, nothing is answered.
    pub fn hang(&self) {
        self.process.hang();
    }

    pub fn resume(&self) {
        self.process.resume();
    }

    /// Sets the offset of its wall clock from real time, and returns once the server uses it.
    pub fn move_clock(&self, seconds: i64) {
        let clock = self.directory.path().join(CLOCK_FILE);
        assert!(clock.exists(), "the server was started with a controllable clock");
        std::fs::write(clock, format!("{seconds:+}\n")).unwrap();
        let mut connection = self.connection();
        poll::wait_for("its clock does not move", || {
            let (now, _): (i64, i64) = send(&mut connection, "TIME");
            let real = i64::try_from(SystemClock::new().now().as_micros() / 1_000_000).unwrap();
            (now - real - seconds).abs() < 60
        });
    }
}

/// The file from which libfaketime reads the clock offset.
const CLOCK_FILE: &str = "clock";

fn send<T: FromRedisValue>(connection: &mut Connection, words: &str) -> T {
    let reply = redis::Cmd::new().arg(words.split(' ').collect::<Vec<_>>()).query(connection);
    reply.unwrap_or_else(|error| panic!("{words}: {error}"))
}

fn run(kind: Kind, directory: &Path, arguments: &[String], prepare: Preparation) -> Process {
    let mut command = Command::new(program(kind.program()));
    prepare(command.args(arguments).current_dir(directory), directory);
    Process::start(&mut command)
}

/// Lets the test control the clock of a server.
fn fake_time(command: &mut Command, directory: &Path) {
    let clock = directory.join(CLOCK_FILE);
    std::fs::write(&clock, "+0\n").unwrap();
    // The server's own allocator reads the time before libfaketime is ready, and would hang: preload libc's first.
    let libraries = format!("{} libc.so.6", fake_time_library().display());
    command.env("LD_PRELOAD", libraries).env("FAKETIME_TIMESTAMP_FILE", clock);
    // Only the wall clock jumps; timers continue.
    command.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
}

fn fake_time_library() -> PathBuf {
    let places = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    let places = places.chain(["/usr/lib", "/usr/lib64", "/usr/local/lib"].map(PathBuf::from));
    let mut libraries = places.map(|place| place.join("faketime/libfaketime.so.1"));
    libraries.find(|library| library.exists()).expect("libfaketime, which `make tools` installs")
}

/// A directory in memory where possible: cluster nodes and sentinels write their state files synchronously.
pub(crate) fn new_directory() -> TempDir {
    let memory = Path::new("/dev/shm");
    let place = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix("tidegate-").tempdir_in(place).unwrap()
}

/// A free port that this process hands out only once. Another process may still take it.
pub fn free_port() -> u16 {
    static USED_PORTS: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        if USED_PORTS.lock().unwrap().insert(port) {
            return port;
        }
    }
}
