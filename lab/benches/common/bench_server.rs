//! `BenchServer`: a server whose CPU time is measured around a workload.

use std::cell::RefCell;

use conformance::server::Server;
use redis::{Cmd, cmd};
use tidegate::spi::{Gate, Subject};
use tidegate_redis::RedisOptions;

use super::{StoreDriver, cpu, send, subjects};

/// Measured requests per key.
const MEASURED_PASSES: usize = 3;

pub(crate) struct BenchServer {
    connection: RefCell<redis::Connection>,
    driver: StoreDriver,
    subjects: Vec<Subject>,
}

impl BenchServer {
    /// Connects to `server`, for this many keys.
    pub(crate) fn new(server: &Server, keys: usize) -> Self {
        Self {
            connection: RefCell::new(server.connection()),
            driver: StoreDriver::connect(server, RedisOptions::new().with_heartbeats(false)),
            subjects: subjects(keys),
        }
    }

    /// Loads `script` and returns the start of its call, up to the key.
    pub(crate) fn load(&self, script: &str) -> Cmd {
        let hash: String = cmd("SCRIPT").arg("LOAD").arg(script).query(&mut *self.connection.borrow_mut()).unwrap();
        cmd("EVALSHA").arg(hash).arg(1).take()
    }

    /// CPU microseconds per command: `start`, a name of 28 bytes, `end`.
    pub(crate) fn by_hand(&self, start: &Cmd, end: &[&str]) -> f64 {
        let keys = self.subjects.len();
        let command = |key: usize| start.clone().arg(format!("by-hand:{key:020}")).arg(end).take();
        self.measure(keys, 2, || send(&mut self.connection.borrow_mut(), (0..keys).map(command)))
    }

    /// CPU microseconds per decision on all `gates`, after `before` decisions of each user.
    pub(crate) fn ours(&self, gates: &[Gate], users: usize, before: usize) -> f64 {
        let users = &self.subjects[..users.min(self.subjects.len())];
        self.measure(users.len(), before, || self.driver.take(gates, users))
    }

    fn measure(&self, keys: usize, before: usize, pass: impl Fn()) -> f64 {
        // Every measurement starts with an empty server.
        cmd("FLUSHALL").arg("SYNC").exec(&mut *self.connection.borrow_mut()).unwrap();
        (0..before).for_each(|_| pass());
        let start = cpu::server_micros(&mut self.connection.borrow_mut());
        (0..MEASURED_PASSES).for_each(|_| pass());
        (cpu::server_micros(&mut self.connection.borrow_mut()) - start) / (keys * MEASURED_PASSES) as f64
    }
}
