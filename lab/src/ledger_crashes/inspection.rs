//! What is inspected after a round, when everything is up and no client calls: gate, ledger and notes agree.

use conformance::http_client::HttpClient;
use conformance::poll::Polling;
use fastrand::Rng;
use serde_json::{Value, json};

use super::client::send;
use super::instance::Instance;
use super::promises::AccountEvidence;
use super::rules::{Account, Quota};
use super::run::{CrashRun, account, tenants_of};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GateView {
    consumed: i64,
    /// Open reservations, and their units.
    holds: (u64, u64),
}

/// Checks all promises. Returns the units under `async` rules that were lost in this round.
pub(super) async fn inspect(run: &mut CrashRun, round: u32, rng: &mut Rng) -> u64 {
    let mut tenants = tenants_of(round);
    // And a tenant of before: its gate is rebuilt from the ledger too.
    tenants.extend(tenants_of(rng.u32(..=round)).into_iter().find(|tenant| !tenants.contains(tenant)));
    let all = |tenant: &String| Quota::ALL.map(|quota| account(quota, tenant));
    let accounts: Vec<Account> = tenants.iter().flat_map(all).collect();
    wait_for_agreement(run, round, &accounts).await;
    reconcile(run, round, rng).await;
    let mut lost = 0;
    for account in &accounts {
        let evidence = evidence(run, account).await;
        let problems = evidence.problems();
        assert!(problems.is_empty(), "{}", report(run, round, &evidence, &problems));
        let lost_before = run.lost_units.insert(account.clone(), evidence.lost_units()).unwrap_or_default();
        lost += evidence.lost_units().saturating_sub(lost_before);
    }
    lost
}

/// Waits until the outboxes are empty, partitions are rebuilt, and every instance says what the ledger has.
async fn wait_for_agreement(run: &CrashRun, round: u32, accounts: &[Account]) {
    run.environment.assert_no_instance_ended();
    let keys: Vec<_> = accounts.iter().map(|account| run.index.key(account)).collect();
    let mut polling = Polling::until("the outboxes are drained and the partitions rebuilt");
    while !run.environment.is_drained(&keys).await {
        polling.pause(|| run.place(round)).await;
    }
    for account in accounts {
        for instance in &run.environment.instances {
            let mut polling = Polling::until("the gate is what the ledger says");
            loop {
                let (ledger, gate) = (ledger_view(run, account).await, gate_view(instance, account).await);
                if ledger.is_some() && ledger == gate {
                    break;
                }
                if polling.is_over() {
                    let problem = format!("the gate is not what the ledger says: {gate:?} and {ledger:?}");
                    panic!("{}", report(run, round, &evidence(run, account).await, &[problem]));
                }
                polling.pause(String::new).await;
            }
        }
    }
}

/// Asks an instance to compare everything, until all partitions are rebuilt. It repairs nothing.
async fn reconcile(run: &CrashRun, round: u32, rng: &mut Rng) {
    let instance = &run.environment.instances[rng.usize(..run.environment.instances.len())];
    let admin = instance.admin().expect("an instance that is up");
    let (place, mut http) = (run.place(round), HttpClient::default());
    let mut polling = Polling::until("all partitions are rebuilt and compared");
    let mut is_running = false;
    loop {
        let method = if is_running { "GET" } else { "POST" };
        let body = if is_running { "" } else { "{}" };
        let path = if is_running { "/v1/usage/reconcile" } else { "/v1/usage/compare" };
        let response = send(&mut http, admin, method, path, body).await.expect("an answer");
        assert!(matches!(response.status, 200 | 202), "{place}: {response:?}");
        let answer = response.json();
        is_running = answer["running"] == json!(true);
        if !is_running {
            let number = |field: &str| answer[field].as_u64().unwrap_or_else(|| panic!("{place}: {answer}"));
            assert_eq!(number("differences"), 0, "{place}: gate and ledger differ: {answer}");
            if number("lost_partitions") + number("busy") == 0 {
                return;
            }
        }
        polling.pause(|| format!("{place}: {answer}")).await;
    }
}

async fn evidence(run: &CrashRun, account: &Account) -> AccountEvidence {
    let rows = run.environment.ledger.rows(&run.index.key(account)).await.expect("a database that is up");
    AccountEvidence {
        account: account.clone(),
        calls: run.calls.get(account).cloned().unwrap_or_default(),
        rows,
        losses: run.losses.get(account).cloned().unwrap_or_default(),
    }
}

async fn ledger_view(run: &CrashRun, account: &Account) -> Option<GateView> {
    let rows = run.environment.ledger.rows(&run.index.key(account)).await.ok()?;
    Some(GateView { consumed: rows.consumed(), holds: rows.open_holds })
}

/// What an instance says, unless it cannot ask the store.
async fn gate_view(instance: &Instance, account: &Account) -> Option<GateView> {
    let post = async |path: &str, body: Value| match instance.post(path, &body).await {
        Some((200, answer)) => Some(answer),
        _ => None,
    };
    let decision = post("/v1/check", account.request(json!({ "peek": true }))).await?;
    let outstanding = post("/v1/quotas/outstanding", account.request(json!({}))).await?;
    let rule = account.quota.rule();
    let find = |list: &Value| list.as_array()?.iter().find(|one| one["rule"] == json!(rule)).cloned();
    let (check, holds) = (find(&decision["checks"])?, find(&outstanding["outstanding"])?);
    let holds = (holds["reservations"].as_u64()?, holds["units"].as_u64()?);
    let taken = account.quota.amount().checked_sub(check["remaining"].as_u64()?)?;
    Some(GateView { consumed: i64::try_from(taken).ok()? - i64::try_from(holds.1).ok()?, holds })
}

fn report(run: &CrashRun, round: u32, evidence: &AccountEvidence, problems: &[String]) -> String {
    let AccountEvidence { account, calls, rows, losses } = evidence;
    let calls: Vec<String> = calls.iter().map(ToString::to_string).collect();
    let entries: Vec<String> = rows.entries.iter().map(|entry| format!("{entry:?}")).collect();
    format!(
        "{}: {account:?}\n{}\ncalls:\n{}\nledger (balance {}, open reservations {:?}):\n{}\nlosses: {losses:?}\ninstances:\n{}",
        run.place(round),
        problems.join("\n"),
        calls.join("\n"),
        rows.balance,
        rows.open_holds,
        entries.join("\n"),
        run.environment.log_lines(),
    )
}
