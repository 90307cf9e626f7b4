//! Values in the store that this version does not write, under the keys of quotas with a ledger.

use std::time::Duration;

use conformance::server::{KINDS, Server};
use conformance::suite::{key_name, long_timeout_options};
use redis::Cmd;
use tidegate::spi::{Check, Plan, Store};
use tidegate_ledger::{Ledger, LedgerService, LedgerUrl, ServiceOptions};

use crate::outbox::fixture::{gate, read_state, subject};

const NEVER: Duration = Duration::from_secs(3_600);

/// They are listed like other differences, hide none of these, and are replaced only when that is asked for.
#[tokio::test]
async fn a_reconcile_lists_unreadable_values_and_replaces_them_when_that_is_asked_for() {
    for kind in KINDS {
        let (server, directory) = (Server::start(kind), tempfile::tempdir().unwrap());
        let store = server.store_with(long_timeout_options()).await;
        let ledger = Ledger::open(&LedgerUrl::Sqlite(directory.path().join("ledger.db"))).await.unwrap();
        let options = ServiceOptions::default().with_flush_interval(NEVER).with_sweep_interval(NEVER);
        let service = LedgerService::start(ledger, store.clone(), options).unwrap();
        service.prepare().await.unwrap();
        let gate = gate("api");
        // All in one partition, so that they are read together.
        let checks = [1, 2, 3, 4].map(|number| Check::new(&gate, subject(number << 20), 3));
        for check in checks {
            assert_eq!(store.decide(&Plan::new([check]).unwrap()).await.unwrap().granted(), 1);
        }
        service.flush_all().await.unwrap();
        let key = |index: usize| key_name(checks[index].key());
        let mut connection = server.connection();
        Cmd::set(key(0), "garbage").exec(&mut connection).unwrap();
        Cmd::del(key(1)).exec(&mut connection).unwrap();
        Cmd::lpush(key(1), "garbage").exec(&mut connection).unwrap();
        Cmd::del(key(2)).exec(&mut connection).unwrap();
        let report = service.reconcile(false).await.unwrap();
        assert_eq!((report.accounts, report.differences), (4, 3), "{kind:?}");
        let mut found: Vec<_> =
            report.listed.iter().map(|one| (one.gate.map(|gate| gate.total), one.ledger.total)).collect();
        found.sort_unstable();
        assert_eq!(found, [(None, 3), (None, 3), (Some(0), 3)], "{kind:?}");
        assert_eq!(service.reconcile(true).await.unwrap().repaired, 3, "{kind:?}");
        for check in &checks {
            assert_eq!(read_state(&store, check).await.unwrap().used, 3, "{kind:?}");
        }
        assert_eq!(service.reconcile(false).await.unwrap().differences, 0, "{kind:?}");
    }
}
