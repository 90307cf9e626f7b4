//! Usage, export, names, and states by key.

use tidegate::limits::{Period, Periods};
use tidegate::spi::algorithm::quota::QuotaState;
use tidegate::spi::{AccountKey, GateState, OutboxEntry, Subject};
use tidegate::{Clock, SystemClock, Timestamp};
use tidegate_ledger::{ExportFormat, ExportQuery, PeriodPoint, UsageQuery};

use crate::ledger_database::{PARTITION, TestDatabase, account, consume, on_both_databases};

on_both_databases!(
    states_come_in_the_order_of_their_keys_and_unknown_ones_are_empty,
    usage_is_found_by_rule_tenant_subject_and_period,
    usage_and_export_come_in_pages,
    an_export_contains_every_entry_in_order_of_time,
    names_are_kept_for_accounts_with_and_without_entries,
    a_text_with_the_character_0_is_looked_for_like_any_other,
    the_clock_of_the_database_is_close_to_this_one,
);

async fn states_come_in_the_order_of_their_keys_and_unknown_ones_are_empty(database: &TestDatabase) {
    let ledger = database.ledger().await;
    ledger.post(&[consume(100, 3), OutboxEntry { subject: Subject::from_hash(2), ..consume(100, 4) }]).await.unwrap();
    let keys = [account(2), account(9), account(1), account(2)];
    let states = ledger.gate_states_of(&keys).await.unwrap();
    assert_eq!(states.iter().map(|state| state.state.used).collect::<Vec<_>>(), [4, 0, 3, 4]);
    let empty = GateState { key: account(9), state: QuotaState::default(), hard_limit: 0, holds: Vec::new() };
    assert_eq!(states[1], empty);
    assert_eq!(ledger.gate_states_of(&[]).await, Ok(Vec::new()));
}

async fn usage_is_found_by_rule_tenant_subject_and_period(database: &TestDatabase) {
    let ledger = database.ledger().await;
    let months = Periods::utc(Period::Month);
    let now = Timestamp::from_micros(1_700_000_000_000_000);
    let month = months.bounds_at(now).index;
    let day = Periods::utc(Period::Day).bounds_at(now).index;
    let daily = |subject| OutboxEntry { stem: "$shared%20pool:u1d.reads".into(), subject, ..consume(day, 5) };
    let (ann, bob) = (Subject::from_hash(1), Subject::from_hash(2));
    ledger
        .post(&[
            consume(month - 1, 23),
            consume(month, 2),
            OutboxEntry { subject: bob, ..consume(month, 7) },
            daily(ann),
        ])
        .await
        .unwrap();
    ledger.set_names(&[(account(2), "bob".into())]).await.unwrap();
    let find = async |query: UsageQuery| {
        let rows = ledger.usage(&query).await.unwrap();
        let mut consumed: Vec<i64> = rows.iter().map(|row| row.consumed).collect();
        consumed.sort_unstable();
        consumed
    };
    let all = UsageQuery::default();
    assert_eq!(find(UsageQuery { rule: Some("exports".into()), ..all.clone() }).await, [2, 7, 23]);
    assert_eq!(find(UsageQuery { tenant: Some("bob".into()), ..all.clone() }).await, [7]);
    assert_eq!(find(UsageQuery { tenant: Some("eve".into()), ..all.clone() }).await, [0_i64; 0]);
    assert_eq!(find(UsageQuery { subject: Some(ann), period: Some(Period::Month), ..all.clone() }).await, [2, 23]);
    let from = Some(PeriodPoint::Time(now));
    assert_eq!(find(UsageQuery { from, subject: Some(ann), ..all.clone() }).await, [2, 5]);
    let start = Timestamp::from_micros(months.start_of(month));
    let to = Some(PeriodPoint::Time(start));
    assert_eq!(find(UsageQuery { to, ..all.clone() }).await, [23]);
    let index = Some(PeriodPoint::Index(month));
    assert_eq!(find(UsageQuery { from: index, to: index, ..all.clone() }).await, [2, 7]);

    let rows = ledger.usage(&UsageQuery { rule: Some("$shared pool".into()), ..all.clone() }).await.unwrap();
    let row = &rows[0];
    assert_eq!((row.limit.as_str(), row.period, &row.name), ("reads", Some(Period::Day), &None));
    let day_start = Timestamp::from_micros(now.as_micros() / 86_400_000_000 * 86_400_000_000);
    assert_eq!(row.bounds.unwrap().0, day_start);
    let rows = ledger
        .usage(&UsageQuery { rule: Some("exports".into()), subject: Some(ann), from: index, ..all })
        .await
        .unwrap();
    assert_eq!((rows[0].carried, rows[0].total(), rows[0].debt()), (13, 15, 5));
    assert_eq!(serde_json::to_value(&rows[0]).unwrap()["debt"], 5);
}

async fn usage_and_export_come_in_pages(database: &TestDatabase) {
    let ledger = database.ledger().await;
    let entries: Vec<OutboxEntry> = (0..10)
        .map(|number| OutboxEntry { subject: Subject::from_hash(number % 3 + 1), ..consume(100 + number as u64, 1) })
        .collect();
    ledger.post(&entries).await.unwrap();
    let mut query = UsageQuery { limit: 4, ..UsageQuery::default() };
    let mut rows = Vec::new();
    loop {
        let page = ledger.usage(&query).await.unwrap();
        let Some(last) = page.last() else { break };
        query.after = Some(last.cursor());
        rows.extend(page);
    }
    assert_eq!(rows, ledger.usage(&UsageQuery::default()).await.unwrap());
    assert_eq!(rows.len(), 10);
    let mut query = ExportQuery { limit: 3, ..ExportQuery::default() };
    let mut exported = Vec::new();
    loop {
        let page = ledger.export(&query).await.unwrap();
        let Some(last) = page.last() else { break };
        query.after = Some(last.cursor());
        exported.extend(page);
    }
    assert_eq!(exported, ledger.export(&ExportQuery::default()).await.unwrap());
    assert_eq!(
        exported.iter().map(|entry| entry.id).collect::<Vec<_>>(),
        entries.iter().map(|entry| entry.id).collect::<Vec<_>>()
    );
    for wrong in ["", "x", "1", "1/2/3"] {
        assert!(ledger.export(&ExportQuery { after: Some(wrong.into()), ..ExportQuery::default() }).await.is_err());
        assert!(ledger.usage(&UsageQuery { after: Some(wrong.into()), ..UsageQuery::default() }).await.is_err());
    }
}

async fn an_export_contains_every_entry_in_order_of_time(database: &TestDatabase) {
    let ledger = database.ledger().await;
    let entries = [consume(103, 3), consume(101, 1), consume(102, 2)];
    ledger.post(&entries).await.unwrap();
    let amounts = async |query: ExportQuery| {
        let entries = ledger.export(&query).await.unwrap();
        entries.iter().map(|entry| entry.amount).collect::<Vec<_>>()
    };
    let all = ExportQuery::default();
    assert_eq!(amounts(all.clone()).await, [1, 2, 3]);
    let (from, to) = (Some(entries[2].at), Some(entries[0].at));
    assert_eq!(amounts(ExportQuery { from, to, ..all.clone() }).await, [2]);
    assert_eq!(amounts(ExportQuery { rule: Some("imports".into()), ..all.clone() }).await, [0_i64; 0]);
    assert_eq!(amounts(ExportQuery { subject: Some(Subject::from_hash(1)), ..all.clone() }).await, [1, 2, 3]);
    let mut text = ExportFormat::Csv.header().to_owned();
    for entry in ledger.export(&all).await.unwrap() {
        ExportFormat::Csv.write(&entry, &mut text);
    }
    assert_eq!(text.lines().count(), 4);
}

async fn names_are_kept_for_accounts_with_and_without_entries(database: &TestDatabase) {
    let ledger = database.ledger().await;
    ledger.post(&[consume(100, 3)]).await.unwrap();
    let names: Vec<(AccountKey, String)> = vec![(account(2), "bob\0".into()), (account(1), "ann".into())];
    ledger.set_names(&names).await.unwrap();
    ledger.set_names(&names).await.unwrap();
    ledger.set_names(&[(account(1), "anna".into())]).await.unwrap();
    ledger.set_names(&[]).await.unwrap();
    ledger.post(&[OutboxEntry { subject: Subject::from_hash(2), ..consume(100, 4) }]).await.unwrap();
    let rows = ledger.usage(&UsageQuery::default()).await.unwrap();
    let names: Vec<_> = rows.iter().map(|row| (row.key.subject.hash(), row.name.as_deref())).collect();
    assert_eq!(names, [(1, Some("anna")), (2, Some("bob\u{fffd}"))]);
    let mut accounts = ledger.accounts_of(PARTITION).await.unwrap();
    accounts.sort();
    assert_eq!(accounts, [account(1), account(2)]);
}

/// PostgreSQL refuses it in texts, and the call failed as if the database did.
async fn a_text_with_the_character_0_is_looked_for_like_any_other(database: &TestDatabase) {
    let ledger = database.ledger().await;
    ledger.post(&[consume(100, 3)]).await.unwrap();
    ledger.set_names(&[(account(1), "bob\0".into())]).await.unwrap();
    for (name, found) in [("bob\0", 1), ("bob\0\0", 0), ("bob", 0)] {
        let tenant = Some(name.to_owned());
        let usage = ledger.usage(&UsageQuery { tenant: tenant.clone(), ..UsageQuery::default() }).await.unwrap();
        let entries = ledger.export(&ExportQuery { tenant, ..ExportQuery::default() }).await.unwrap();
        assert_eq!((usage.len(), entries.len()), (found, found), "{name:?}");
    }
    let rule = Some("exports\0".to_owned());
    assert_eq!(ledger.usage(&UsageQuery { rule: rule.clone(), ..UsageQuery::default() }).await, Ok(Vec::new()));
    assert_eq!(ledger.export(&ExportQuery { rule, ..ExportQuery::default() }).await, Ok(Vec::new()));
}

async fn the_clock_of_the_database_is_close_to_this_one(database: &TestDatabase) {
    let (ledger, host) = (database.ledger().await, SystemClock::new());
    let before = host.now().as_micros();
    let now = ledger.now().await.unwrap().as_micros();
    let after = host.now().as_micros();
    // Clocks that differ by a time zone or by a unit differ by far more.
    assert!(before - 5_000_000 <= now && now <= after + 5_000_000, "{before} {now} {after}");
}
