//! `Environment`: the real processes of one run, each of which can be killed and started again.

use std::path::Path;
use std::sync::Arc;

use tempfile::TempDir;
use tidegate::spi::{AccountKey, Outbox, OutboxEntry};
use tidegate_redis::RedisStore;
use tokio::task::block_in_place;

use super::instance::Instance;
use super::ledger_rows::LedgerDatabase;
use super::rules::{SECRET, rule_file};
use super::strike::{Deployment, Victim};
use conformance::postgres::PostgresServer;
use conformance::server::{Kind, Server};
use conformance::suite::{connect_store, long_timeout_options};

/// More entries than an outbox has in a round.
const MAX_WAITING: usize = 100_000;

/// A busy machine needs more time than the defaults give.
const BUDGETS: [&str; 4] = ["--store-budget", "500", "--ledger-budget", "1000"];

pub(super) struct Environment {
    /// First, so that instances end before what they use.
    pub(super) instances: Vec<Arc<Instance>>,
    pub(super) ledger: LedgerDatabase,
    shared: Option<SharedParts>,
    _directory: TempDir,
}

/// What a fleet shares.
struct SharedParts {
    redis: Server,
    postgres: PostgresServer,
    /// The harness looks into outboxes through it.
    store: RedisStore,
}

impl Environment {
    pub(super) async fn start(deployment: Deployment, program: &Path, reservation_ttl: u64) -> Self {
        let directory = TempDir::new().unwrap();
        let path = directory.path().to_owned();
        std::fs::write(path.join("rules.yaml"), rule_file()).unwrap();
        let (ttl, rules) = (reservation_ttl.to_string(), path.join("rules.yaml").display().to_string());
        let options = ["--rules", &rules, "--secret", SECRET, "--reservation-ttl", &ttl];
        let mut arguments: Vec<_> = options.into_iter().chain(BUDGETS).map(str::to_owned).collect();
        let (shared, ledger) = match deployment {
            Deployment::Fleet => {
                let (redis, postgres) = block_in_place(|| (Server::start(Kind::Redis), PostgresServer::start()));
                arguments.extend(["--store".to_owned(), redis.url(), "--ledger".to_owned(), postgres.url()]);
                let store = connect_store(&redis.url(), &long_timeout_options()).await;
                let ledger = LedgerDatabase::postgres(&postgres.url());
                (Some(SharedParts { redis, postgres, store }), ledger)
            }
            Deployment::Single => {
                let file = path.join("ledger.db");
                arguments.extend(["--ledger".to_owned(), format!("sqlite:{}", file.display())]);
                (None, LedgerDatabase::sqlite(&file))
            }
        };
        let mut instances = Vec::new();
        for number in 0..deployment.instances() {
            // Each has its own directory, in which its journal is.
            let own = path.join(format!("instance-{number}"));
            std::fs::create_dir(&own).unwrap();
            instances.push(Arc::new(Instance::start(program, arguments.clone(), &own).await));
        }
        Self { instances, ledger, shared, _directory: directory }
    }

    pub(super) fn strike(&mut self, victim: Victim) {
        block_in_place(|| match victim {
            Victim::Instance(index) => self.instances[index].kill(),
            Victim::Redis => self.shared_mut().redis.kill(),
            Victim::Postgres => self.shared_mut().postgres.kill(),
            Victim::PostgresStopped => self.shared_mut().postgres.hang(),
        });
    }

    pub(super) async fn repair(&mut self, victim: Victim) {
        match victim {
            Victim::Instance(index) => self.instances[index].restart().await,
            Victim::Redis => {
                block_in_place(|| self.shared_mut().redis.restart_with(&[]));
                let shared = self.shared_mut();
                shared.store = connect_store(&shared.redis.url(), &long_timeout_options()).await;
            }
            Victim::Postgres => block_in_place(|| self.shared_mut().postgres.restart()),
            Victim::PostgresStopped => block_in_place(|| self.shared_mut().postgres.resume()),
        }
    }

    /// What waits in the outbox of each account at this moment.
    pub(super) async fn waiting(&self, accounts: &[AccountKey]) -> Vec<Vec<OutboxEntry>> {
        let shared = self.shared.as_ref().expect("a part of a fleet");
        let mut waiting = Vec::new();
        for account in accounts {
            let batch = shared.store.read_outbox(account.partition, MAX_WAITING).await.expect("a store that is up");
            waiting.push(batch.entries.into_iter().filter(|entry| entry.account() == *account).collect());
        }
        waiting
    }

    /// Whether the outboxes of these accounts are empty, and their partitions are rebuilt.
    pub(super) async fn is_drained(&self, accounts: &[AccountKey]) -> bool {
        let Some(shared) = &self.shared else { return true };
        for account in accounts {
            match shared.store.read_outbox(account.partition, 1).await {
                Ok(batch) if batch.generation.is_some() && batch.entries.is_empty() => {}
                _ => return false,
            }
        }
        true
    }

    /// The outputs of all instances.
    pub(super) fn log_lines(&self) -> String {
        self.instances.iter().map(|instance| instance.log_lines() + "\n").collect()
    }

    /// An instance that has ended without being killed broke a promise.
    pub(super) fn assert_no_instance_ended(&self) {
        for instance in &self.instances {
            assert!(!instance.has_ended_by_itself(), "an instance has ended:\n{}", instance.log_lines());
        }
    }

    fn shared_mut(&mut self) -> &mut SharedParts {
        self.shared.as_mut().expect("a part of a fleet")
    }
}
