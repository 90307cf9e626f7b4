//! A real server of its own for each test: on a free port, in a directory of its own, stopped when dropped.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use tidegate_redis::{RedisOptions, RedisStore};

/// Which program to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `redis-server`
    Redis,
    /// `valkey-server`
    Valkey,
}

/// Both, for tests that must hold on each.
pub const KINDS: [Kind; 2] = [Kind::Redis, Kind::Valkey];

/// A running server.
#[derive(Debug)]
pub struct Server {
    process: Child,
    port: u16,
    directory: PathBuf,
    password: Option<String>,
}

impl Kind {
    /// The program, from the repository's own tools or the path.
    fn program(self) -> PathBuf {
        let name = match self {
            Self::Redis => "redis-server",
            Self::Valkey => "valkey-server",
        };
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/bin").join(name);
        if own.exists() { own } else { PathBuf::from(name) }
    }
}

impl Server {
    /// Starts a server that keeps nothing on disk.
    pub fn start(kind: Kind) -> Self {
        Self::start_with(kind, &[])
    }

    /// Starts a server with further arguments.
    pub fn start_with(kind: Kind, arguments: &[&str]) -> Self {
        // Another process may take the port between our looking and the server's binding: then look again.
        (0..20).find_map(|_| Self::try_start(kind, arguments)).expect("a server that starts within twenty tries")
    }

    fn try_start(kind: Kind, arguments: &[&str]) -> Option<Self> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("tidegate-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        let process = Command::new(kind.program())
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .args(arguments)
            .current_dir(&directory)
            .stdout(File::create(directory.join("log")).unwrap())
            .stdin(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{kind:?} does not start ({error}); `make tools` installs it"));
        let password = arguments.iter().position(|argument| *argument == "--requirepass");
        let password = password.and_then(|at| arguments.get(at + 1)).map(|password| (*password).to_owned());
        let mut server = Self { process, port, directory, password };
        server.wait_until_up().then_some(server)
    }

    /// Waits until it answers, or has ended.
    fn wait_until_up(&mut self) -> bool {
        loop {
            if self.process.try_wait().unwrap().is_some() {
                return false;
            }
            if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) {
                let mut first = [0];
                stream.write_all(b"PING\r\n").unwrap();
                // `+PONG`, or `-NOAUTH` from a server that wants a password: it is up either way.
                return stream.read_exact(&mut first).is_ok();
            }
            std::thread::yield_now();
        }
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        match &self.password {
            Some(password) => format!("redis://:{password}@127.0.0.1:{}", self.port),
            None => format!("redis://127.0.0.1:{}", self.port),
        }
    }

    /// Where it listens, without the password.
    pub fn bare_url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The number of its process.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// A store on it.
    pub async fn store(&self) -> RedisStore {
        self.store_with(RedisOptions::new()).await
    }

    /// A store on it, with these options.
    pub async fn store_with(&self, options: RedisOptions) -> RedisStore {
        RedisStore::connect_with(&self.url(), options).await.unwrap()
    }

    /// A plain connection to it.
    pub fn connection(&self) -> redis::Connection {
        redis::Client::open(self.url()).unwrap().get_connection().unwrap()
    }

    /// Ends it as a crash would.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
