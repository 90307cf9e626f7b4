//! `BenchServer`: a server whose processor time is read around what it is asked to do.

use std::cell::RefCell;

use conformance::server::Server;
use redis::{Cmd, cmd};
use tidegate::spi::{Gate, Subject};
use tidegate_redis::RedisOptions;

use super::{Pipeline, StoreDriver, cpu, subjects};

/// How often every key is asked for while the clock runs.
const TIMED: usize = 3;

pub(crate) struct BenchServer {
    connection: RefCell<redis::Connection>,
    pipeline: RefCell<Pipeline>,
    driver: StoreDriver,
    subjects: Vec<Subject>,
}

impl BenchServer {
    /// Drives `server` with this many keys.
    pub(crate) fn new(server: &Server, keys: usize) -> Self {
        Self {
            connection: RefCell::new(server.connection()),
            pipeline: RefCell::new(Pipeline::connect(server)),
            driver: StoreDriver::connect(server, RedisOptions::new()),
            subjects: subjects(keys),
        }
    }

    /// The start of a call of `script`, up to its key.
    pub(crate) fn load(&self, script: &str) -> Cmd {
        let hash: String = cmd("SCRIPT").arg("LOAD").arg(script).query(&mut *self.connection.borrow_mut()).unwrap();
        cmd("EVALSHA").arg(hash).arg(1).take()
    }

    /// Microseconds for one command: `start`, a name of 28 bytes, `end`.
    pub(crate) fn by_hand(&self, start: &Cmd, end: &[&str]) -> f64 {
        let keys = self.subjects.len();
        let command = |key: usize| start.clone().arg(format!("by-hand:{key:020}")).arg(end).take();
        self.timed(keys, 2, || self.pipeline.borrow_mut().send((0..keys).map(command)))
    }

    /// Microseconds for one decision about all `gates` together, by users who have each made `before` of them.
    pub(crate) fn ours(&self, gates: &[Gate], users: usize, before: usize) -> f64 {
        let users = &self.subjects[..users.min(self.subjects.len())];
        self.timed(users.len(), before, || self.driver.take(gates, users))
    }

    fn timed(&self, keys: usize, before: usize, pass: impl Fn()) -> f64 {
        // The same start for everybody, whatever the one before left behind.
        cmd("FLUSHALL").arg("SYNC").exec(&mut *self.connection.borrow_mut()).unwrap();
        (0..before).for_each(|_| pass());
        let start = cpu::server_micros(&mut self.connection.borrow_mut());
        (0..TIMED).for_each(|_| pass());
        (cpu::server_micros(&mut self.connection.borrow_mut()) - start) / (keys * TIMED) as f64
    }
}
