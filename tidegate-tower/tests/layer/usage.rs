//! Costs that are the tokens of a language model: reserved, and committed by the service.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::routing::get;
use tidegate::rules::UsageKind;
use tidegate::{Limit, Limiter, ManualClock, MemoryStore, Rate, Rule};
use tidegate_tower::{LimitLayer, TokenUsage, UsageReport};
use tower::ServiceExt;

use crate::layer::{START, burst, limiter, limiter_on, request_with_key, send, wait_until};

fn rules() -> [Rule; 3] {
    let tokens = |id: &'static str, kind| Rule::new(id, burst(1000)).with_cost(100).with_usage(kind);
    [tokens("total", UsageKind::Total), tokens("output", UsageKind::Output), Rule::new("requests", burst(1000))]
}

/// What is left under each rule.
fn remaining(limiter: &Limiter<Arc<MemoryStore>>) -> Vec<u64> {
    let plan = limiter.plan(&tidegate::Request::new("")).with_peek();
    limiter.plans().check_now(&plan).checks().iter().map(|check| check.outcome().remaining).collect()
}

/// A service that hands its report to `serve`.
fn app<F: Future<Output = ()> + Send>(
    layer: LimitLayer<Arc<MemoryStore>>,
    serve: impl Fn(UsageReport) -> F + Clone + Send + Sync + 'static,
) -> Router {
    let page = get(async move |mut request: Request| {
        serve(request.extensions_mut().remove().unwrap()).await;
        "answer"
    });
    Router::new().route("/", page).layer(layer)
}

#[tokio::test]
async fn a_service_commits_the_tokens_that_were_used() {
    let layer = LimitLayer::new(limiter(rules()));
    let limiter = layer.handle().limiter();
    let at_work = Arc::clone(&limiter);
    let app = app(layer, move |report| {
        let at_work = Arc::clone(&at_work);
        async move {
            assert_eq!(remaining(&at_work), [900, 900, 999], "reserved while it works");
            report.commit(Some(TokenUsage { input: 30, output: 7 })).await;
            report.commit(Some(TokenUsage { input: 500, output: 500 })).await;
        }
    });
    send(&app, request_with_key("k1")).await;
    assert_eq!(remaining(&limiter), [963, 993, 999], "the second commit does nothing");
}

#[tokio::test]
async fn a_service_that_does_not_report_pays_what_was_reserved() {
    for commits_nothing in [true, false] {
        let layer = LimitLayer::new(limiter(rules()));
        let limiter = layer.handle().limiter();
        let app = app(layer, move |report| async move {
            if commits_nothing {
                report.commit(None).await;
            }
        });
        send(&app, request_with_key("k1")).await;
        wait_until(|| remaining(&limiter) == [900, 900, 999]).await;
    }
}

#[tokio::test]
async fn a_request_without_such_a_rule_has_no_report() {
    let page = get(async |request: Request| format!("{:?}", request.extensions().get::<UsageReport>().is_some()));
    for (rules, has_report) in [(vec![Rule::new("requests", burst(9))], "false"), (rules().to_vec(), "true")] {
        let app = Router::new().route("/", page.clone()).layer(LimitLayer::new(limiter(rules)));
        assert_eq!(send(&app, request_with_key("k1")).await.body, has_report);
    }
}

/// Slots are held as a lease, which the commit does not end.
#[tokio::test]
async fn a_slot_is_held_until_the_response_ends_and_not_only_until_the_tokens_are_committed() {
    let slots = Limit::concurrency(3, Duration::from_secs(60)).unwrap();
    let tokens = Rule::new("tokens", burst(1000)).with_cost(100).with_usage(UsageKind::Total);
    let layer = LimitLayer::new(limiter([tokens, Rule::new("slots", slots)]));
    let limiter = layer.handle().limiter();
    let at_work = Arc::clone(&limiter);
    let app = app(layer, move |report| {
        let at_work = Arc::clone(&at_work);
        async move {
            assert_eq!(remaining(&at_work), [900, 2]);
            report.commit(Some(TokenUsage { input: 30, output: 7 })).await;
            assert_eq!(remaining(&at_work), [963, 2]);
        }
    });
    send(&app, request_with_key("k1")).await;
    wait_until(|| remaining(&limiter) == [963, 3]).await;
}

/// The last requests of a server that stops have no runtime to wait for.
#[test]
fn a_report_that_is_dropped_after_its_runtime_is_committed() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let layer = LimitLayer::new(limiter(rules()));
    let limiter = layer.handle().limiter();
    let (sender, reports) = std::sync::mpsc::channel();
    let app = app(layer, move |report| {
        let sender = sender.clone();
        async move { sender.send(report).unwrap() }
    });
    for _ in 0..2 {
        runtime.block_on(send(&app, request_with_key("k1")));
    }
    drop(runtime);
    reports.recv().unwrap().spawn_commit(Some(TokenUsage { input: 1, output: 2 }));
    drop(reports.recv().unwrap());
    assert_eq!(remaining(&limiter), [1000 - 3 - 100, 1000 - 2 - 100, 998]);
}

/// A place in a queue is not held by a reservation; a request that leaves it gets everything back.
#[tokio::test]
async fn a_request_that_is_cancelled_while_it_is_delayed_costs_nothing() {
    let clock = ManualClock::starting_at(START);
    let queue = Limit::leaky_bucket(Rate::per_second(1).unwrap(), 10).unwrap();
    let tokens = Rule::new("tokens", burst(1000)).with_cost(100).with_usage(UsageKind::Total);
    let layer = LimitLayer::new(limiter_on(&clock, [tokens, Rule::new("queue", queue)])).with_timer(clock.clone());
    let limiter = layer.handle().limiter();
    let app = app(layer, async |report| report.commit(Some(TokenUsage { input: 1, output: 0 })).await);
    send(&app, request_with_key("k1")).await;
    assert_eq!(remaining(&limiter)[0], 999);
    let delayed = tokio::spawn(app.clone().oneshot(request_with_key("k1")));
    wait_until(|| remaining(&limiter)[0] == 899).await;
    delayed.abort();
    wait_until(|| remaining(&limiter)[0] == 999).await;
    wait_until(|| clock.pending_sleeps() == 0).await;
    let delayed = tokio::spawn(app.oneshot(request_with_key("k1")));
    wait_until(|| remaining(&limiter)[0] == 899).await;
    clock.advance(Duration::from_secs(1));
    delayed.await.unwrap().unwrap();
    assert_eq!(remaining(&limiter)[0], 998);
}

/// The service works until it is told the tokens, for longer than its reservation may last. What it states last is charged as far as it is
/// more than was committed.
#[tokio::test]
async fn a_service_that_outlasts_its_reservation_pays_for_all_tokens_in_the_end() {
    let tokens = |input, output| TokenUsage { input, output };
    for (progress, last, used) in [
        (None, Some(tokens(100, 500)), [600, 500]),
        (None, Some(tokens(30, 7)), [100, 100]),
        (None, None, [100, 100]),
        (Some(tokens(30, 7)), Some(tokens(20, 80)), [100, 80]),
        (Some(tokens(30, 7)), None, [100, 100]),
    ] {
        let clock = ManualClock::starting_at(START);
        let layer = LimitLayer::new(limiter_on(&clock, rules())).with_timer(clock.clone());
        let limiter = layer.handle().limiter();
        let (sender, mut reports) = tokio::sync::mpsc::unbounded_channel();
        let app = app(layer, move |report| {
            let sender = sender.clone();
            async move { sender.send(report).unwrap() }
        });
        send(&app, request_with_key("k1")).await;
        let report = reports.recv().await.unwrap();
        if let Some(progress) = progress {
            report.set_progress(progress);
        }
        wait_until(|| clock.pending_sleeps() == 1).await;
        clock.advance(Duration::from_secs(240));
        while limiter.outstanding(&tidegate::Request::new("")).await.unwrap()[0].reservations > 0 {
            tokio::task::yield_now().await;
        }
        report.set_progress(tokens(1, 1));
        report.commit(last).await;
        assert_eq!(remaining(&limiter)[..2], [1000 - used[0], 1000 - used[1]], "{progress:?} {last:?}");
    }
}

/// Otherwise a request that never ends would pay for its first four minutes only.
#[tokio::test]
async fn a_service_that_never_ends_pays_for_its_progress_from_time_to_time() {
    let tokens = |input, output| TokenUsage { input, output };
    for (progress, last, used) in [
        (
            [Some((30, 7)), Some((50, 57)), Some((1, 1)), Some((60, 57))],
            (60, 58),
            [[37, 7], [107, 57], [107, 57], [117, 57], [118, 58]],
        ),
        (
            [None, Some((30, 7)), Some((60, 90)), Some((60, 120))],
            (60, 110),
            [[100, 100], [100, 100], [150, 100], [180, 120], [180, 120]],
        ),
    ] {
        let clock = ManualClock::starting_at(START);
        let layer = LimitLayer::new(limiter_on(&clock, rules())).with_timer(clock.clone());
        let limiter = layer.handle().limiter();
        let (sender, mut reports) = tokio::sync::mpsc::unbounded_channel();
        let app = app(layer, move |report| {
            let sender = sender.clone();
            async move { sender.send(report).unwrap() }
        });
        send(&app, request_with_key("k1")).await;
        let report = reports.recv().await.unwrap();
        for (progress, used) in progress.into_iter().zip(used) {
            if let Some((input, output)) = progress {
                report.set_progress(tokens(input, output));
            }
            wait_until(|| clock.pending_sleeps() == 1).await;
            clock.advance(Duration::from_secs(240));
            // It sleeps again after it has charged.
            wait_until(|| clock.pending_sleeps() == 1).await;
            assert_eq!(remaining(&limiter)[..2], used.map(|used| 1000 - used), "{progress:?}");
        }
        report.commit(Some(tokens(last.0, last.1))).await;
        assert_eq!(remaining(&limiter)[..2], used[4].map(|used| 1000 - used));
        wait_until(|| clock.pending_sleeps() == 0).await;
    }
}

#[tokio::test]
async fn costs_that_a_late_response_states_are_charged() {
    let clock = ManualClock::starting_at(START);
    let tokens = Rule::new("tokens", burst(1000)).with_cost(100).with_usage(UsageKind::Total);
    let rows = Rule::new("rows", burst(1000)).with_cost(10);
    let layer = LimitLayer::new(limiter_on(&clock, [tokens, rows]))
        .with_timer(clock.clone())
        .with_actual_cost(|_, rule| (rule == "rows").then_some(50));
    let limiter = layer.handle().limiter();
    let app = app(layer, {
        let (clock, limiter) = (clock.clone(), Arc::clone(&limiter));
        move |_report| {
            let (clock, limiter) = (clock.clone(), Arc::clone(&limiter));
            async move {
                wait_until(|| clock.pending_sleeps() == 1).await;
                clock.advance(Duration::from_secs(240));
                while limiter.outstanding(&tidegate::Request::new("")).await.unwrap()[0].reservations > 0 {
                    tokio::task::yield_now().await;
                }
            }
        }
    });
    send(&app, request_with_key("k1")).await;
    wait_until(|| remaining(&limiter) == [900, 950]).await;
}

/// A failed request uses no tokens, and may state what it costs under other rules all the same.
#[tokio::test]
async fn tokens_that_are_known_early_leave_the_costs_of_other_rules_to_the_response() {
    let tokens = Rule::new("tokens", burst(1000)).with_cost(100).with_usage(UsageKind::Total);
    let rows = Rule::new("rows", burst(1000)).with_cost(10);
    let layer = LimitLayer::new(limiter([tokens, rows])).with_actual_cost(|_, rule| (rule == "rows").then_some(50));
    let limiter = layer.handle().limiter();
    let app = app(layer, async |report| report.commit_at_end(TokenUsage::default()));
    send(&app, request_with_key("k1")).await;
    assert_eq!(remaining(&limiter), [1000, 950]);
}

#[tokio::test]
async fn a_service_pays_although_the_store_has_lost_its_reservation() {
    let layer = LimitLayer::new(limiter(rules()));
    let limiter = layer.handle().limiter();
    let at_work = Arc::clone(&limiter);
    let app = app(layer, move |report| {
        let at_work = Arc::clone(&at_work);
        async move {
            at_work.forget(&tidegate::Request::new("")).await.unwrap();
            report.commit(Some(TokenUsage { input: 30, output: 7 })).await;
        }
    });
    send(&app, request_with_key("k1")).await;
    // The last rule counts requests: what it took is lost with the store.
    assert_eq!(remaining(&limiter), [963, 993, 1000]);
}

#[tokio::test]
async fn a_rule_that_shares_a_budget_is_enforced_and_pays_what_the_response_states() {
    let shared = |id: &'static str| Rule::new(id, burst(1000)).with_budget("all");
    let rows = shared("rows").with_cost(10);
    let tokens = shared("tokens").with_cost(100).with_usage(UsageKind::Total);
    for rules in [[rows.clone(), tokens.clone()], [tokens, rows]] {
        let layer = LimitLayer::new(limiter(rules)).with_actual_cost(|_, rule| (rule == "rows").then_some(50));
        let limiter = layer.handle().limiter();
        let app = app(layer, async |report| {
            assert!(report.is_enforced());
            report.commit_at_end(TokenUsage { input: 3, output: 4 });
        });
        send(&app, request_with_key("k1")).await;
        assert_eq!(remaining(&limiter), [1000 - 50 - 7]);
    }
}

/// Requests per second stay what they are, however long the responses take.
#[tokio::test]
async fn rules_without_tokens_count_open_requests_as_ever() {
    let clock = ManualClock::starting_at(START);
    let window = Duration::from_secs(1);
    let requests = [
        Limit::token_bucket(10, Rate::per_second(10).unwrap()).unwrap(),
        Limit::sliding_window(10, window, 10).unwrap(),
        Limit::sliding_log(10, window).unwrap(),
    ];
    for limit in requests {
        let tokens = Rule::new("tokens", burst(10_000)).with_cost(100).with_usage(UsageKind::Total);
        let layer = LimitLayer::new(limiter_on(&clock, [tokens, Rule::new("requests", limit)]));
        let limiter = layer.handle().limiter();
        let (sender, reports) = std::sync::mpsc::channel();
        let app = app(layer, move |report| {
            let sender = sender.clone();
            async move { sender.send(report).unwrap() }
        });
        for _ in 0..10 {
            assert_eq!(send(&app, request_with_key("k1")).await.status, StatusCode::OK);
        }
        assert_eq!(send(&app, request_with_key("k1")).await.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(remaining(&limiter), [9_000, 0], "a request that one rule denies reserves nothing");
        // All ten are still under way.
        clock.advance(2 * window);
        assert_eq!(remaining(&limiter), [9_000, 10], "{limit:?}");
        assert_eq!(send(&app, request_with_key("k1")).await.status, StatusCode::OK);
        for report in reports.try_iter() {
            report.commit(Some(TokenUsage { input: 7, output: 0 })).await;
        }
        assert_eq!(remaining(&limiter), [10_000 - 11 * 7, 9], "{limit:?}");
    }
}

/// What the response states is settled as soon as its head is there, whether the tokens were committed before it or come after it.
#[tokio::test]
async fn a_cost_that_the_response_states_is_settled_beside_the_tokens() {
    for commits_first in [true, false] {
        let tokens = Rule::new("tokens", burst(1000)).with_cost(100).with_usage(UsageKind::Total);
        let layer = LimitLayer::new(limiter([tokens, Rule::new("work", burst(1000)).with_cost(50)]))
            .with_actual_cost(|_, rule| (rule == "work").then_some(8));
        let limiter = layer.handle().limiter();
        let (sender, reports) = std::sync::mpsc::channel();
        let app = app(layer, move |report| {
            let sender = sender.clone();
            async move {
                if commits_first {
                    report.commit(Some(TokenUsage { input: 7, output: 0 })).await;
                }
                sender.send(report).unwrap();
            }
        });
        send(&app, request_with_key("k1")).await;
        assert_eq!(remaining(&limiter), [if commits_first { 993 } else { 900 }, 992]);
        reports.recv().unwrap().commit(Some(TokenUsage { input: 7, output: 0 })).await;
        assert_eq!(remaining(&limiter), [993, 992]);
    }
}
