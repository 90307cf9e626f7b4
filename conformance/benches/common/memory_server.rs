//! `MemoryServer`: a server that is weighed before and after keys are written to it.

use std::cell::RefCell;
use std::time::Duration;

use conformance::server::{Kind, Server};
use redis::Cmd;
use tidegate::spi::Gate;
use tidegate::{Limit, ManualClock, Timestamp};
use tidegate_redis::RedisOptions;

use super::{Pipeline, StoreDriver, cpu::field, subjects};

/// When the first request comes, in microseconds: the start of a minute in September 2026.
pub(crate) const START: u64 = 1_790_000_040_000_000;

pub(crate) struct MemoryServer {
    server: Server,
    connection: RefCell<redis::Connection>,
}

/// What keys weigh.
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

    /// Lets as many subjects as there shall be keys take from `limit` at each of these microseconds.
    pub(crate) fn takes(&self, keys: usize, at: &[u64], limit: Limit) -> KeySize {
        let gates = [Gate::for_rule("api", limit)];
        let subjects = subjects(keys);
        self.weigh(keys, |count| {
            let clock = ManualClock::at(Timestamp::from_micros(START));
            let driver = StoreDriver::connect(&self.server, RedisOptions::new().with_clock(clock.clone()));
            for at in at {
                clock.set(Timestamp::from_micros(START + at));
                driver.take_fast(&gates, &subjects[..count]);
            }
        })
    }

    /// Sends what `commands` makes of a name of 28 bytes and a microsecond, for each key at each of these microseconds.
    pub(crate) fn commands(&self, keys: usize, at: &[u64], commands: fn(&[u8], u64) -> Vec<Cmd>) -> KeySize {
        self.weigh(keys, |count| {
            let mut pipeline = Pipeline::connect(&self.server);
            for at in at {
                pipeline.send((0..count).flat_map(|key| commands(format!("by-hand:{key:020}").as_bytes(), *at)));
            }
        })
    }

    /// Weighs what `write` writes for as many keys as it is told.
    fn weigh(&self, keys: usize, write: impl Fn(usize)) -> KeySize {
        // What the server keeps for good after the first commands, such as its scripts, is no part of the keys.
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

    /// The memory in use once nothing moves any more: buffers shrink and tables grow for a while after the last command.
    #[allow(clippy::disallowed_methods, reason = "the server does not say when it is done")]
    fn settled(&self) -> f64 {
        let mut used = self.used();
        loop {
            // The server works at it ten times a second.
            std::thread::sleep(Duration::from_millis(110));
            let last = std::mem::replace(&mut used, self.used());
            if (used - last).abs() < 1.0 {
                return used;
            }
        }
    }

    /// The memory in use once all other connections are gone, whose buffers count too.
    fn used(&self) -> f64 {
        let info = |section: &str| self.query::<String>(&redis::cmd("INFO").arg(section).take());
        while field(&info("clients"), "connected_clients") != "1" {
            std::thread::yield_now();
        }
        field(&info("memory"), "used_memory").parse().unwrap()
    }

    /// Which server it is, and with which allocator.
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
