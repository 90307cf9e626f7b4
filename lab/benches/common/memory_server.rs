//! `MemoryServer`: a server whose memory is measured before and after keys are written.

use std::cell::RefCell;
use std::time::Duration;

use conformance::server::{Kind, Server};
use redis::Cmd;
use tidegate::spi::Gate;
use tidegate::{Limit, ManualClock, Timestamp};
use tidegate_redis::RedisOptions;

use super::{StoreDriver, cpu::field, send, subjects};

/// The time of the first request, in microseconds: the start of a minute in September 2026.
pub(crate) const START: u64 = 1_790_000_040_000_000;

pub(crate) struct MemoryServer {
    server: Server,
    connection: RefCell<redis::Connection>,
}

/// The memory of keys.
pub(crate) struct KeySize {
    pub(crate) bytes_per_key: f64,
    /// The length of a name.
    pub(crate) name: usize,
    /// The length of a value, if it is a string.
    pub(crate) value: Option<usize>,
}

impl MemoryServer {
    pub(crate) fn open(kind: Kind) -> Self {
        let server = Server::start(kind);
        let connection = RefCell::new(server.connection());
        Self { server, connection }
    }

    /// Measures `keys` subjects that take from `limit` at each of these microseconds.
    pub(crate) fn takes(&self, keys: usize, at: &[u64], limit: Limit) -> KeySize {
        let gates = [Gate::for_rule("api", limit)];
        let subjects = subjects(keys);
        self.measure(keys, |count| {
            let clock = ManualClock::starting_at(Timestamp::from_micros(START));
            let options = RedisOptions::new().with_heartbeats(false).with_clock(clock.clone());
            let driver = StoreDriver::connect(&self.server, options);
            for at in at {
                clock.set(Timestamp::from_micros(START + at));
                driver.take_fast(&gates, &subjects[..count]);
            }
        })
    }

    /// Measures `commands`, called with a name of 28 bytes and a time, for each key at each of these microseconds.
    pub(crate) fn commands(&self, keys: usize, at: &[u64], commands: fn(&[u8], u64) -> Vec<Cmd>) -> KeySize {
        self.measure(keys, |count| {
            // A connection of its own, whose buffers are gone when the memory is measured.
            let mut connection = self.server.connection();
            for at in at {
                let names = (0..count).map(|key| format!("by-hand:{key:020}"));
                send(&mut connection, names.flat_map(|name| commands(name.as_bytes(), *at)));
            }
        })
    }

    /// Measures what `write` writes for a number of keys.
    fn measure(&self, keys: usize, write: impl Fn(usize)) -> KeySize {
        // Memory that stays after the first commands, such as scripts, does not belong to the keys.
        write(1);
        self.query::<()>(&redis::cmd("FLUSHALL").arg("SYNC").take());
        let before = self.settled();
        write(keys);
        let after = self.settled();
        assert_eq!(self.query::<usize>(&redis::cmd("DBSIZE")), keys, "every key is still there");

        let name: Vec<u8> = self.query(&redis::cmd("RANDOMKEY"));
        let kind: String = self.query(&redis::cmd("TYPE").arg(&name).take());
        let value = (kind == "string").then(|| self.query(&redis::cmd("STRLEN").arg(&name).take()));
        KeySize { bytes_per_key: (after - before) / keys as f64, name: name.len(), value }
    }

    /// The memory in use once it is stable: buffers shrink and tables grow for a while after the last command.
    #[allow(clippy::disallowed_methods, reason = "the server does not say when it is done")]
    fn settled(&self) -> f64 {
        let mut used = self.used();
        loop {
            // The server resizes ten times a second.
            std::thread::sleep(Duration::from_millis(110));
            let last = std::mem::replace(&mut used, self.used());
            if (used - last).abs() < 1.0 {
                return used;
            }
        }
    }

    /// The memory in use without other connections, whose buffers would count.
    fn used(&self) -> f64 {
        let info = |section: &str| self.query::<String>(&redis::cmd("INFO").arg(section).take());
        while field(&info("clients"), "connected_clients") != "1" {
            std::thread::yield_now();
        }
        field(&info("memory"), "used_memory").parse().unwrap()
    }

    /// The server's version and allocator.
    pub(crate) fn version(&self) -> String {
        let server: String = self.query(&redis::cmd("INFO").arg("server").take());
        let memory: String = self.query(&redis::cmd("INFO").arg("memory").take());
        let valkey = server.lines().find_map(|line| line.strip_prefix("valkey_version:"));
        let (name, version) =
            valkey.map_or_else(|| ("redis", field(&server, "redis_version")), |known| ("valkey", known));
        format!("{name} {version} ({})", field(&memory, "mem_allocator"))
    }

    fn query<T: redis::FromRedisValue>(&self, command: &Cmd) -> T {
        command.query(&mut *self.connection.borrow_mut()).unwrap()
    }
}
