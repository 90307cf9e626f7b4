//! `BatchBench`: CPU time of a server for decisions in batches, and for what they are compared with.

use std::cell::RefCell;
use std::time::Duration;

use conformance::server::Server;
use redis::{Cmd, cmd};
use tidegate::spi::{Check, Gate, Plan, Subject};
use tidegate::{Limit, Rate};
use tidegate_redis::{RedisOptions, RedisStore};
use tokio::runtime::Runtime;

use super::{Pipeline, Random, cpu, subjects};

/// A token bucket as one instant, with as few commands and conversions as possible: neither exact fractions, nor a check of the
/// stored value, nor remaining and retry times.
const LEAN_GCRA: &str = "#!lua
local interval, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local full = tonumber(redis.call('GET', KEYS[1])) or now
if full < now then full = now end
full = full + interval
if full - now > burst then return 0 end
redis.call('SET', KEYS[1], string.format('%d', full), 'PX', string.format('%d', (full - now) / 1000 + 1))
return 1";

/// Which keys the requests use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyChoice {
    /// All the same key.
    Hot,
    /// Each a key chosen at random.
    Uniform,
    /// Three checks: one of ten tenants, a client chosen at random, and the rule for everybody.
    TenantClientRule,
}

pub(crate) struct BatchBench {
    connection: RefCell<redis::Connection>,
    pipeline: RefCell<Pipeline>,
    store: RedisStore,
    runtime: Runtime,
    gates: [Gate; 3],
    subjects: Vec<Subject>,
    batch_size: usize,
    /// The index of the client of each request.
    requests: Vec<u32>,
}

impl BatchBench {
    /// A bench with this many clients and requests.
    pub(crate) fn new(server: &Server, clients: usize, batch_size: usize, requests: usize) -> Self {
        let runtime = Runtime::new().unwrap();
        let options = RedisOptions::new().with_timeout(Duration::from_secs(60)).with_heartbeats(false);
        let limit = Limit::token_bucket(1_000_000, Rate::per_minute(1).unwrap()).unwrap();
        Self {
            connection: RefCell::new(server.connection()),
            pipeline: RefCell::new(Pipeline::connect(server)),
            store: runtime.block_on(server.store_with(options)),
            runtime,
            gates: ["client", "tenant", "rule"].map(|rule| Gate::for_rule(rule, limit)),
            subjects: subjects(clients),
            batch_size,
            requests: Random::new(5).uniform(clients, requests),
        }
    }

    /// CPU microseconds for one `INCR`.
    pub(crate) fn incr(&self, choice: KeyChoice) -> f64 {
        self.by_hand(choice, &cmd("INCR"), &[], 1)
    }

    /// CPU microseconds for one request with a script for each of its checks.
    pub(crate) fn lean_script(&self, choice: KeyChoice, checks: usize) -> f64 {
        let hash: String = cmd("SCRIPT").arg("LOAD").arg(LEAN_GCRA).query(&mut *self.connection.borrow_mut()).unwrap();
        self.by_hand(choice, cmd("EVALSHA").arg(hash).arg(1), &["60000000", "60000000000000"], checks)
    }

    /// CPU microseconds for one plan that is decided in a batch.
    pub(crate) fn batches(&self, choice: KeyChoice) -> f64 {
        let [client, tenant, rule] = &self.gates;
        let plan = |number: &u32| {
            let index = *number as usize;
            let check = |gate, index: usize| Check::new(gate, self.subjects[index], 1);
            match choice {
                KeyChoice::Hot => Plan::new([check(client, 0)]),
                KeyChoice::Uniform => Plan::new([check(client, index)]),
                KeyChoice::TenantClientRule => {
                    Plan::new([check(tenant, index % 10), check(client, index), check(rule, 0)])
                }
            }
            .unwrap()
        };
        self.measure(|| {
            for batch in self.requests.chunks(self.batch_size) {
                let plans: Vec<Plan<'_>> = batch.iter().map(plan).collect();
                for verdict in self.runtime.block_on(self.store.decide_batch(&plans)).1 {
                    assert_eq!(verdict.unwrap().granted(), 1);
                }
            }
        })
    }

    fn by_hand(&self, choice: KeyChoice, start: &Cmd, end: &[&str], checks: usize) -> f64 {
        let command = |number: &u32, check: usize| {
            let number = match (choice, check) {
                (KeyChoice::Hot, _) | (_, 2) => 0,
                (_, 1) => number % 10,
                _ => *number,
            };
            start.clone().arg(format!("by-hand:{check}:{number:018}")).arg(end).take()
        };
        self.measure(|| {
            for batch in self.requests.chunks(self.batch_size) {
                let commands = batch.iter().flat_map(|number| (0..checks).map(move |check| command(number, check)));
                self.pipeline.borrow_mut().send(commands);
            }
        })
    }

    /// CPU microseconds of the server for one request of the second pass: every client has a key by then.
    fn measure(&self, pass: impl Fn()) -> f64 {
        cmd("FLUSHALL").arg("SYNC").exec(&mut *self.connection.borrow_mut()).unwrap();
        pass();
        let start = cpu::server_micros(&mut self.connection.borrow_mut());
        pass();
        (cpu::server_micros(&mut self.connection.borrow_mut()) - start) / self.requests.len() as f64
    }
}
