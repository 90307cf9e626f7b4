//! Corrections, resets, and the roll-up of old entries.

use tidegate::Timestamp;
use tidegate::limits::{Period, Periods};
use tidegate::spi::algorithm::quota::QuotaState;
use tidegate::spi::{EntryKind, MAX_AMOUNT, OutboxEntry};
use tidegate_ledger::{Correction, ExportQuery, Ledger, LedgerErrorKind, Posted, RollUp, UsageQuery};

use crate::ledger_database::{PARTITION, TestDatabase, account, consume, on_both_databases};

on_both_databases!(
    a_correction_is_an_entry_with_author_and_reason,
    a_correction_with_an_idempotency_key_counts_once,
    a_correction_below_zero_is_refused_and_changes_nothing,
    a_correction_above_the_largest_amount_is_refused_and_changes_nothing,
    a_refused_correction_shows_its_period_as_a_date,
    a_correction_of_an_unknown_account_needs_its_limit,
    corrections_at_the_same_time_all_count,
    a_reset_of_an_account_without_entries_posts_nothing,
    a_reset_leaves_nothing_used_and_no_debt,
    late_amounts_after_a_reset_do_not_bring_forgiven_debt_back,
    a_reset_of_an_idle_account_keeps_what_was_consumed_before,
    a_roll_up_keeps_sums_and_counts_nothing_twice,
);

const INSERTED: Posted = Posted { inserted: 1, repeated: 0 };

const AT: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

async fn state(ledger: &Ledger) -> QuotaState {
    ledger.gate_states_of(&[account(1)]).await.unwrap().remove(0).state
}

fn correction(amount: i64) -> Correction {
    Correction::new(account(1), amount, "ann", "ticket 7", AT)
}

fn reset() -> Correction {
    Correction::reset(account(1), "ann", "goodwill", AT)
}

async fn a_correction_is_an_entry_with_author_and_reason(database: &TestDatabase) {
    let ledger = database.ledger().await;
    ledger.post(&[consume(100, 14), consume(101, 3)]).await.unwrap();
    ledger.correct(&correction(-2)).await.unwrap();
    assert_eq!(state(&ledger).await, QuotaState { index: 101, used: 5, debt: 0, previous: 10, carried: 4 });
    ledger.correct(&correction(-3).with_period(100)).await.unwrap();
    assert_eq!(state(&ledger).await, QuotaState { index: 101, used: 2, debt: 0, previous: 10, carried: 1 });
    let exported = ledger.export(&ExportQuery::default()).await.unwrap();
    let own: Vec<_> = exported.iter().filter(|entry| entry.kind == EntryKind::Correct).collect();
    let shown =
        |entry: &&tidegate_ledger::LedgerEntry| (entry.index, entry.amount, entry.author.clone(), entry.reason.clone());
    let text = |text: &str| Some(text.to_owned());
    let mut shown: Vec<_> = own.iter().map(shown).collect();
    shown.sort();
    assert_eq!(shown, [(100, -3, text("ann"), text("ticket 7")), (101, -2, text("ann"), text("ticket 7"))]);
}

async fn a_correction_with_an_idempotency_key_counts_once(database: &TestDatabase) {
    let ledger = database.ledger().await;
    ledger.post(&[consume(100, 8)]).await.unwrap();
    let keyed = correction(-5).with_idempotency_key("k1");
    assert_eq!(ledger.correct(&keyed).await, Ok(INSERTED));
    for _ in 0..2 {
        assert_eq!(ledger.correct(&keyed).await, Ok(Posted { inserted: 0, repeated: 1 }));
    }
    assert_eq!(state(&ledger).await.used, 3);
    let other = ledger.correct(&correction(-1).with_idempotency_key("k1")).await.unwrap_err();
    assert_eq!(other.kind(), LedgerErrorKind::Invalid);
    let reset_with_it = ledger.correct(&reset().with_idempotency_key("k1")).await.unwrap_err();
    assert_eq!(reset_with_it.kind(), LedgerErrorKind::Invalid);
    ledger.correct(&correction(-1).with_idempotency_key("k2")).await.unwrap();
    assert_eq!(state(&ledger).await.used, 2);
}

async fn a_correction_below_zero_is_refused_and_changes_nothing(database: &TestDatabase) {
    let ledger = database.ledger().await;
    ledger.post(&[consume(100, 3)]).await.unwrap();
    let error = ledger.correct(&correction(-4)).await.unwrap_err();
    assert_eq!(error.kind(), LedgerErrorKind::Invalid);
    assert!(error.to_string().contains("below 0: it is 3"), "{error}");
    let soon = Periods::utc(Period::Month).bounds_at(AT).index + 3;
    for wrong in [
        correction(0),
        correction(-1).with_period(99),
        correction(1).with_period(soon),
        Correction { author: " ".into(), ..correction(1) },
        Correction { reason: String::new(), ..correction(1) },
        Correction { reason: "a\0b".into(), ..correction(1) },
    ] {
        assert_eq!(ledger.correct(&wrong).await.unwrap_err().kind(), LedgerErrorKind::Invalid, "{wrong:?}");
    }
    assert_eq!(state(&ledger).await, QuotaState { index: 100, used: 3, ..QuotaState::default() });
    assert_eq!(ledger.export(&ExportQuery::default()).await.unwrap().len(), 1);
    ledger.correct(&correction(-3)).await.unwrap();
    assert_eq!(state(&ledger).await.used, 0);
}

/// Sums that saturate would differ from the sum of their entries.
async fn a_correction_above_the_largest_amount_is_refused_and_changes_nothing(database: &TestDatabase) {
    let ledger = database.ledger().await;
    let max = MAX_AMOUNT.cast_signed();
    ledger.post(&[consume(100, 3)]).await.unwrap();
    for amount in [i64::MAX, i64::MIN, max + 1, -max - 1, max, max - 2] {
        let error = ledger.correct(&correction(amount)).await.unwrap_err();
        assert_eq!(error.kind(), LedgerErrorKind::Invalid, "{amount}");
        assert!(error.to_string().contains("4503599627370495"), "{error}");
    }
    assert_eq!(ledger.export(&ExportQuery::default()).await.unwrap().len(), 1);
    assert_eq!(ledger.correct(&correction(max - 3)).await, Ok(INSERTED));
    // What was consumed beyond it can be given back, a part at a time.
    ledger.post(&[consume(100, 10)]).await.unwrap();
    assert_eq!(ledger.correct(&correction(-1)).await, Ok(INSERTED));
    assert_eq!(ledger.correct(&correction(-max)).await, Ok(INSERTED));
    let exported = ledger.export(&ExportQuery::default()).await.unwrap();
    let usage = ledger.usage(&UsageQuery::default()).await.unwrap();
    assert_eq!((exported.iter().map(|entry| entry.amount).sum::<i64>(), usage[0].consumed), (9, 9));
}

async fn a_refused_correction_shows_its_period_as_a_date(database: &TestDatabase) {
    let ledger = database.ledger().await;
    let current = Periods::utc(Period::Month).bounds_at(AT).index;
    ledger.post(&[consume(current, 3)]).await.unwrap();
    let error = ledger.correct(&correction(-4)).await.unwrap_err().to_string();
    assert!(error.contains("the consumption of 2023-11 below 0"), "{error}");
    let error = ledger.correct(&correction(1).with_period(current + 3)).await.unwrap_err().to_string();
    assert_eq!(error, "2024-02 has not begun; the current period is 2023-11");
    // One that no date stands for.
    let error = ledger.correct(&correction(1).with_period(u64::MAX)).await.unwrap_err();
    assert_eq!(error.kind(), LedgerErrorKind::Invalid);
}

async fn a_correction_of_an_unknown_account_needs_its_limit(database: &TestDatabase) {
    let ledger = database.ledger().await;
    assert_eq!(ledger.correct(&correction(5)).await.unwrap_err().kind(), LedgerErrorKind::Invalid);
    assert_eq!(ledger.accounts_of(PARTITION).await, Ok(Vec::new()));
    ledger.correct(&correction(5).with_period(100).with_hard_limit(20)).await.unwrap();
    let known = ledger.gate_states(PARTITION).await.unwrap().remove(0);
    assert_eq!((known.state.used, known.hard_limit), (5, 20));
}

async fn corrections_at_the_same_time_all_count(database: &TestDatabase) {
    let ledger = database.ledger().await;
    ledger.post(&[consume(100, 0)]).await.unwrap();
    let corrections = (0..20).map(|_| {
        let ledger = ledger.clone();
        async move {
            ledger.correct(&correction(1)).await.unwrap();
            ledger.post(&[consume(100, 1)]).await.unwrap();
        }
    });
    futures_util::future::join_all(corrections).await;
    let state = state(&ledger).await;
    assert_eq!(state.used + state.debt, 40);
}

async fn a_reset_of_an_account_without_entries_posts_nothing(database: &TestDatabase) {
    let ledger = database.ledger().await;
    assert_eq!(ledger.correct(&reset()).await, Ok(Posted::default()));
    assert_eq!(ledger.accounts_of(PARTITION).await, Ok(Vec::new()));
    // It may have a name already.
    ledger.set_names(&[(account(1), "ann".into())]).await.unwrap();
    assert_eq!(ledger.correct(&reset().with_period(101)).await, Ok(Posted::default()));
    assert_eq!(ledger.export(&ExportQuery::default()).await, Ok(Vec::new()));
    let unnamed = Correction { author: String::new(), ..reset() };
    assert_eq!(ledger.correct(&unnamed).await.unwrap_err().kind(), LedgerErrorKind::Invalid);
}

async fn a_reset_leaves_nothing_used_and_no_debt(database: &TestDatabase) {
    let ledger = database.ledger().await;
    ledger.post(&[consume(99, 35), consume(101, 9)]).await.unwrap();
    assert_eq!(state(&ledger).await, QuotaState { index: 101, used: 10, debt: 14, previous: 10, carried: 15 });
    assert_eq!(ledger.correct(&reset().with_idempotency_key("r")).await, Ok(INSERTED));
    assert_eq!(ledger.correct(&reset().with_idempotency_key("r")).await, Ok(Posted { inserted: 0, repeated: 1 }));
    assert_eq!(state(&ledger).await, QuotaState { index: 101, previous: 10, ..QuotaState::default() });
    ledger.post(&[consume(102, 2)]).await.unwrap();
    assert_eq!(state(&ledger).await, QuotaState { index: 102, used: 2, ..QuotaState::default() });
    let exported = ledger.export(&ExportQuery::default()).await.unwrap();
    let own: Vec<_> = exported.iter().filter(|entry| entry.kind == EntryKind::Reset).collect();
    assert_eq!((own.len(), own[0].amount, own[0].forgiven), (1, -9, 15));
}

async fn late_amounts_after_a_reset_do_not_bring_forgiven_debt_back(database: &TestDatabase) {
    let ledger = database.ledger().await;
    ledger.post(&[consume(100, 15), consume(101, 1)]).await.unwrap();
    ledger.correct(&reset()).await.unwrap();
    ledger.post(&[OutboxEntry { late_amount: -3, ..consume(101, 0) }]).await.unwrap();
    assert_eq!(state(&ledger).await, QuotaState { index: 101, previous: 10, ..QuotaState::default() });
    ledger.post(&[OutboxEntry { late_amount: 5, ..consume(101, 0) }]).await.unwrap();
    assert_eq!(state(&ledger).await, QuotaState { index: 101, used: 2, debt: 0, previous: 10, carried: 2 });
}

async fn a_reset_of_an_idle_account_keeps_what_was_consumed_before(database: &TestDatabase) {
    let ledger = database.ledger().await;
    ledger.post(&[consume(100, 25)]).await.unwrap();
    ledger.correct(&reset().with_period(101)).await.unwrap();
    assert_eq!(state(&ledger).await, QuotaState { index: 101, previous: 10, ..QuotaState::default() });
    let usage = ledger.usage(&UsageQuery::default()).await.unwrap();
    assert_eq!(usage.iter().map(|row| (row.index, row.consumed)).collect::<Vec<_>>(), [(100, 25), (101, 0)]);
}

async fn a_roll_up_keeps_sums_and_counts_nothing_twice(database: &TestDatabase) {
    let ledger = database.ledger().await;
    let entries: Vec<OutboxEntry> = (0..2_500).map(|number| consume(100 + number % 5, 1)).collect();
    ledger.post(&entries).await.unwrap();
    ledger.correct(&Correction { at: Timestamp::from_micros(5), ..correction(7).with_period(100) }).await.unwrap();
    let (usage, before) = (ledger.usage(&UsageQuery::default()).await.unwrap(), state(&ledger).await);
    // Up to period 102, at whose time its entries are; the correction stays.
    let horizon = Timestamp::from_micros(103_000_000);
    assert_eq!(ledger.roll_up(horizon).await, Ok(RollUp { deleted: 1_500, kept: 1 }));
    assert_eq!(ledger.roll_up(horizon).await, Ok(RollUp { deleted: 0, kept: 1 }));
    // The last period stays, whatever the time.
    assert_eq!(ledger.roll_up(Timestamp::MAX).await, Ok(RollUp { deleted: 500, kept: 501 }));
    assert_eq!(ledger.usage(&UsageQuery::default()).await.unwrap(), usage);
    assert_eq!(ledger.post(&entries).await, Ok(Posted { inserted: 0, repeated: 2_500 }));
    assert_eq!((ledger.usage(&UsageQuery::default()).await.unwrap(), state(&ledger).await), (usage, before));
    // What is new counts, also in periods of which other entries are gone.
    let late = OutboxEntry { at: Timestamp::from_micros(110_000_000), ..consume(102, 1) };
    assert_eq!(ledger.post(&[late]).await, Ok(Posted { inserted: 1, repeated: 0 }));
    let changed = state(&ledger).await;
    assert_eq!(changed.used + changed.debt, before.used + before.debt + 1);
}
