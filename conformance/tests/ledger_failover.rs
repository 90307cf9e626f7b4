//! A replica that takes over without the last writes: nobody is confirmed whose entry it lacks, and the gate equals the ledger again.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use conformance::server::{KINDS, Kind, Server};
use conformance::suite::{long_timeout_options, retry_while_transient};
use redis::Connection;
use tempfile::TempDir;
use tidegate::limits::{Period, Periods};
use tidegate::rules::LedgerMode;
use tidegate::spi::{AccountKey, LedgerStage, Outbox, Store, UnconfirmedEntry};
use tidegate::{Ending, Limit, Limiter, Request, Rule, RuleSet, StoreErrorKind};
use tidegate_ledger::{Ledger, LedgerService, LedgerUrl, ServiceOptions};
use tidegate_redis::RedisStore;

/// More than anybody consumes.
const LIMIT: u64 = 1_000_000;

/// A primary, a replica, and a limiter on what is at the address of the primary.
struct Failover {
    server: Server,
    replica: Server,
    store: RedisStore,
    limiter: Limiter<RedisStore>,
    service: LedgerService<RedisStore>,
    ledger: Ledger,
    _directory: TempDir,
}

impl Failover {
    async fn start(kind: Kind) -> Self {
        let server = Server::start_with(kind, &["--repl-diskless-sync-delay", "0"]);
        let port = server.port().to_string();
        let replica = Server::start_with(kind, &["--replicaof", "127.0.0.1", &port]);
        replica.wait_for("INFO", "replication", "master_link_status:up");
        let directory = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(&LedgerUrl::Sqlite(directory.path().join("ledger.db"))).await.unwrap();
        let store = server.store_with(long_timeout_options()).await;
        let service = start_service(&ledger, &store);
        service.prepare().await.unwrap();
        let quota = Limit::quota(LIMIT, Periods::utc(Period::Year)).unwrap();
        let rule = Rule::new("units", quota).with_per(["tenant"]).with_ledger(LedgerMode::Sync);
        let limiter = Limiter::new(RuleSet::new([rule]).unwrap(), store.clone()).with_ledger(Arc::new(service.clone()));
        Self { server, replica, store, limiter, service, ledger, _directory: directory }
    }

    fn request(cost: u64) -> Request<'static> {
        Request::new("export").with_attribute("tenant", "acme").with_cost(cost)
    }

    async fn consume(&self, cost: u64) {
        assert!(self.limiter.check(&Self::request(cost)).await.unwrap().is_allowed());
    }

    /// What the gate says is used.
    async fn used(&self) -> u64 {
        LIMIT - self.limiter.peek(&Self::request(0)).await.unwrap().remaining().unwrap()
    }

    async fn account(&self) -> AccountKey {
        for partition in 0..1024 {
            if let Some(account) = self.ledger.accounts_of(partition).await.unwrap().pop() {
                return account;
            }
        }
        panic!("the ledger has an account");
    }

    async fn ledger_used(&self) -> u64 {
        let states = self.ledger.gate_states_of(&[self.account().await]).await.unwrap();
        states[0].state.used
    }

    /// Waits until the replica has everything, and cuts it off.
    fn cut_replica_off(&self) {
        // WAIT is about the writes of its own connection, and those before.
        let mut connection = self.server.connection();
        let _: () = redis::cmd("SET").arg("last").arg("write").query(&mut connection).unwrap();
        let replicas: i64 = redis::cmd("WAIT").arg(1).arg(0).query(&mut connection).unwrap();
        assert_eq!(replicas, 1);
        let _: () = redis::cmd("REPLICAOF").arg("NO").arg("ONE").query(&mut self.replica.connection()).unwrap();
    }

    /// The replica takes over: what it has is at the address of the primary, which is gone.
    fn fail_over(&mut self) {
        let _: () = redis::cmd("SAVE").query(&mut self.replica.connection()).unwrap();
        let [from, to] =
            [&self.replica, &self.server].map(|server| setting(&mut server.connection(), "dir").join("dump.rdb"));
        self.server.kill();
        std::fs::copy(from, to).unwrap();
        self.server.restart_with(&[]);
    }

    /// Waits until the store has noticed that the server is another one.
    async fn wait_until_reachable(&self) {
        let plan = self.limiter.plan(&Self::request(0)).with_peek();
        retry_while_transient(async || self.store.decide(&plan).await).await;
    }

    async fn generation(&self) -> Option<u64> {
        self.store.read_outbox(self.account().await.partition, 1).await.unwrap().generation
    }

    async fn wait_until_rebuilt(&self, generation: Option<u64>) {
        let waiting = async {
            let mut found = generation;
            while found.is_none() || found == generation {
                found = self.generation().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("the partition is rebuilt within a minute");
    }

    async fn reserve_and_commit(&self, cost: u64) {
        let mut decision = self.limiter.reserve(&Self::request(cost), Some("job-1")).await.unwrap();
        self.limiter.end(&mut decision.take_grant(), &Ending::Commit(cost.into())).await.unwrap();
    }
}

fn start_service(ledger: &Ledger, store: &RedisStore) -> LedgerService<RedisStore> {
    // Nothing is read unless a caller waits for it.
    let never = Duration::from_secs(3_600);
    let options = ServiceOptions::default().with_budget(Duration::from_secs(60));
    let options = options.with_flush_interval(never).with_sweep_interval(never);
    LedgerService::start(ledger.clone(), store.clone(), options).unwrap()
}

fn setting(connection: &mut Connection, name: &str) -> PathBuf {
    let (_, value): (String, String) = redis::cmd("CONFIG").arg("GET").arg(name).query(connection).unwrap();
    value.into()
}

/// The last write of the primary, and nothing else, is missing.
#[tokio::test]
async fn a_caller_whose_entry_the_replica_lacks_is_not_confirmed() {
    for kind in KINDS {
        let mut failover = Failover::start(kind).await;
        failover.consume(3).await;
        failover.cut_replica_off();
        // The entry is written to the primary, which is gone before anybody has read it.
        let id = {
            let plan = failover.limiter.plan(&Failover::request(5));
            failover.store.decide(&plan).await.unwrap().entry(0).unwrap()
        };
        failover.fail_over();
        failover.wait_until_reachable().await;
        let entry = UnconfirmedEntry { partition: id.partition, generation: id.generation, id: Some(id) };
        let error = failover.service.confirm(vec![entry]).await.unwrap_err();
        assert_eq!((error.kind(), error.is_possibly_applied()), (StoreErrorKind::Rebuilding, true), "{error}");
        failover.consume(1).await;
        assert_eq!((failover.used().await, failover.ledger_used().await), (4, 4));
        assert_eq!(failover.service.stats().older_copies, 0, "the ledger has nothing that the store lacks");
    }
}

/// Entries that are in the ledger are missing, and requests are decided before anybody reads the outbox.
#[tokio::test]
async fn a_replica_that_is_behind_the_ledger_is_rebuilt_from_it() {
    for kind in KINDS {
        let mut failover = Failover::start(kind).await;
        failover.consume(3).await;
        failover.cut_replica_off();
        failover.consume(5).await;
        failover.reserve_and_commit(7).await;
        assert_eq!((failover.used().await, failover.ledger_used().await), (15, 15));
        let generation = failover.generation().await;
        failover.fail_over();
        failover.wait_until_reachable().await;
        assert_eq!(failover.generation().await, generation, "the replica has the generation");
        // This one is decided on the older copy. It is in the ledger, so it counts.
        failover.consume(2).await;
        failover.wait_until_rebuilt(generation).await;
        assert_eq!((failover.used().await, failover.ledger_used().await), (17, 17));
        failover.consume(1).await;
        assert_eq!((failover.used().await, failover.ledger_used().await), (18, 18));
        assert_eq!(failover.service.stats().older_copies, 1);
        assert_eq!(failover.service.reconcile(false).await.unwrap().differences, 0);
    }
}

/// An instance that starts after the failover has seen nothing of the store before.
#[tokio::test]
async fn an_instance_that_starts_later_finds_a_replica_that_is_behind_the_ledger() {
    let mut failover = Failover::start(Kind::Redis).await;
    failover.consume(3).await;
    failover.cut_replica_off();
    failover.consume(5).await;
    failover.service.shutdown(Duration::from_secs(60)).await.unwrap();
    failover.fail_over();
    failover.wait_until_reachable().await;
    assert_eq!(failover.used().await, 3);
    let service = start_service(&failover.ledger, &failover.store);
    assert_eq!(service.prepare().await.unwrap().rebuilt, 1);
    assert_eq!((failover.used().await, service.stats().older_copies), (8, 1));
}

/// A restart with all data, or a failover that lost nothing, needs no rebuild.
#[tokio::test]
async fn a_replica_that_has_everything_stays_as_it_is() {
    let mut failover = Failover::start(Kind::Redis).await;
    failover.consume(3).await;
    failover.service.flush_all().await.unwrap();
    failover.cut_replica_off();
    let generation = failover.generation().await;
    failover.fail_over();
    failover.wait_until_reachable().await;
    failover.consume(4).await;
    failover.service.flush_all().await.unwrap();
    assert_eq!((failover.used().await, failover.ledger_used().await), (7, 7));
    assert_eq!((failover.generation().await, failover.service.stats().older_copies), (generation, 0));
}
