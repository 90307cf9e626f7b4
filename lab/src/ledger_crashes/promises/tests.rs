//! The checks notice what they must notice.

use super::*;
use crate::ledger_crashes::rules::Quota;

fn call(quota: Quota, kind: CallKind, answer: Answer, at: u64) -> CallRecord {
    let account = Account { quota, tenant: "ann".to_owned() };
    let (began, ended) = (Timestamp::from_micros(at), Timestamp::from_micros(at + 1));
    CallRecord { round: 0, client: 0, instance: 0, account, kind, began, ended, answer }
}

fn consume(quota: Quota, answer: Answer, at: u64) -> CallRecord {
    call(quota, CallKind::Consume { cost: 3 }, answer, at)
}

fn commit(answer: Answer) -> CallRecord {
    call(Quota::Sync, CallKind::Commit { key: "a".to_owned(), cost: 3 }, answer, 1)
}

fn entry(kind: EntryKind, amount: i64, owner: i64) -> EntryRow {
    EntryRow { time: 1, kind, amount, owner }
}

fn problems(calls: Vec<CallRecord>, entries: Vec<EntryRow>, losses: Vec<StoreLoss>) -> usize {
    let account = calls[0].account.clone();
    let balance = entries.iter().map(|entry| entry.amount).sum();
    let rows = LedgerRows { entries, balance, open_holds: (0, 0) };
    AccountEvidence { account, calls, rows, losses }.problems().len()
}

#[test]
fn an_acknowledged_consumption_must_be_there_once() {
    let consumed = entry(EntryKind::Consume, 3, 0);
    let acknowledged = || vec![consume(Quota::Sync, Answer::Done, 1)];
    assert_eq!(problems(acknowledged(), vec![consumed], vec![]), 0);
    assert_eq!(problems(acknowledged(), vec![], vec![]), 1, "it is missing");
    assert_eq!(problems(acknowledged(), vec![consumed, consumed], vec![]), 1, "it is there twice");
    assert_eq!(problems(acknowledged(), vec![entry(EntryKind::Consume, 4, 0)], vec![]), 2, "another amount");
    assert_eq!(problems(vec![consume(Quota::Sync, Answer::Denied, 1)], vec![consumed], vec![]), 1, "it was denied");
}

#[test]
fn an_uncertain_consumption_may_be_there_missing_or_refunded() {
    let (consumed, refunded) = (entry(EntryKind::Consume, 3, 0), entry(EntryKind::Release, -3, 0));
    for answer in [Answer::Failed, Answer::Missing] {
        for entries in [vec![], vec![consumed], vec![consumed, refunded]] {
            assert_eq!(problems(vec![consume(Quota::Sync, answer, 1)], entries, vec![]), 0);
        }
    }
    let acknowledged = vec![consume(Quota::Sync, Answer::Done, 1)];
    assert!(problems(acknowledged, vec![consumed, refunded], vec![]) > 0, "it was acknowledged and given back");
}

#[test]
fn a_loss_excuses_what_was_waiting_or_late_and_nothing_under_sync() {
    let loss = |waiting: Vec<(EntryKind, i64)>| {
        vec![StoreLoss { looked_at: Timestamp::from_micros(100), dead_at: Timestamp::from_micros(110), waiting }]
    };
    let waiting = || loss(vec![(EntryKind::Consume, 3)]);
    let early = |quota| vec![consume(quota, Answer::Done, 50)];
    assert_eq!(problems(early(Quota::Async), vec![], waiting()), 0, "it was waiting");
    assert_eq!(problems(early(Quota::Async), vec![], loss(vec![])), 1, "it was not");
    assert_eq!(problems(vec![consume(Quota::Async, Answer::Done, 105)], vec![], loss(vec![])), 0, "it was late");
    assert_eq!(problems(early(Quota::Sync), vec![], waiting()), 1);
    assert_eq!(problems(vec![consume(Quota::Sync, Answer::Done, 105)], vec![], waiting()), 1);
}

#[test]
fn an_idempotency_key_is_committed_once() {
    let once = entry(EntryKind::Commit, 3, 7);
    assert_eq!(problems(vec![commit(Answer::Done), commit(Answer::Done)], vec![once], vec![]), 0);
    assert_eq!(problems(vec![commit(Answer::Missing), commit(Answer::Done)], vec![once], vec![]), 0);
    assert_eq!(problems(vec![commit(Answer::Done)], vec![], vec![]), 1);
    assert!(problems(vec![commit(Answer::Done), commit(Answer::Missing)], vec![once, once], vec![]) > 0);
    assert!(problems(vec![commit(Answer::NotFound)], vec![once], vec![]) > 0, "nobody was told that it counts");
}

#[test]
fn more_than_the_quota_is_a_problem() {
    let calls: Vec<_> = (0..134).map(|at| consume(Quota::Sync, Answer::Done, at)).collect();
    let entries = vec![entry(EntryKind::Consume, 3, 0); 134];
    assert_eq!(problems(calls, entries, vec![]), 2, "402 of 400, in the ledger and acknowledged");
}

#[test]
fn a_reservation_that_nobody_ended_has_not_ended() {
    let reserve = |answer, at| call(Quota::Async, CallKind::Reserve { key: "a".to_owned(), cost: 3 }, answer, at);
    let release = |at| call(Quota::Async, CallKind::Release { key: "a".to_owned() }, Answer::Missing, at);
    let reserved = || vec![entry(EntryKind::Reserve, 0, 7)];
    assert_eq!(problems(vec![reserve(Answer::Done, 1), reserve(Answer::Ended, 5)], reserved(), vec![]), 1);
    assert_eq!(problems(vec![reserve(Answer::Done, 1), release(3), reserve(Answer::Ended, 5)], reserved(), vec![]), 0);
    assert_eq!(problems(vec![reserve(Answer::Ended, 1), release(3)], reserved(), vec![]), 1, "it was ended later");
}
