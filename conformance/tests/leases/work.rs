//! Work that holds a slot: it keeps the slot as long as it lasts, even if the store is emptied, and is stopped when the slot is lost. The work
//! is a task in `Limiter::hold`, a response through the tower layer, or one through the gateway.

use std::convert::Infallible;
use std::future::pending;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::response::Response;
use conformance::suite::{AnyStore, StoreFixture, left, on_every_store, serve, start_gateway, until};
use futures_util::stream;
use tidegate::grants::GrantError;
use tidegate::{Clock, Limiter, ManualClock, Request, Rule, RuleSet, Timestamp};
use tidegate_tower::{Handle, LimitLayer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::leases::{LEASE, hold, slots, take, wait_for_left};

#[derive(Clone, Copy, Debug)]
enum Kind {
    Task,
    Response,
    GatewayResponse,
}

/// How work ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Finished,
    Stopped,
}

/// Where work of one kind is done, by one that has a slot of `rule`.
struct Place {
    rule: String,
    limiter: Handle<AnyStore>,
    /// Tasks hold their slots by the first rules, responses by the current ones.
    first: Arc<Limiter<AnyStore>>,
    /// By which slots are renewed.
    timer: ManualClock,
    /// One permit lets all work finish.
    finish: Arc<Semaphore>,
    /// Where responses come from, unless the work is a task.
    address: Option<SocketAddr>,
}

/// Runs `behaviour` with each kind of work, on each store.
async fn with_each_kind_of_work(behaviour: impl AsyncFn(&StoreFixture, &Place)) {
    on_every_store(async |fixture| {
        for kind in [Kind::Task, Kind::Response, Kind::GatewayResponse] {
            println!("{kind:?}");
            behaviour(fixture, &Place::new(kind, fixture).await).await;
        }
    })
    .await;
}

/// A page that sends something, and the rest when it may finish.
fn page(finish: &Arc<Semaphore>) -> Router {
    let finish = Arc::clone(finish);
    Router::new().fallback(async move || {
        let parts = stream::unfold((Arc::clone(&finish), 0), async move |(finish, part): (Arc<Semaphore>, u8)| {
            if part == 1 {
                drop(finish.acquire().await);
            }
            (part < 2).then(|| (Ok::<_, Infallible>(Bytes::from_static(b"part")), (finish, part + 1)))
        });
        Response::new(Body::from_stream(parts))
    })
}

impl Place {
    async fn new(kind: Kind, fixture: &StoreFixture) -> Self {
        let (timer, finish) = (ManualClock::default(), Arc::new(Semaphore::new(0)));
        let rule = format!("{kind:?}");
        let layer = LimitLayer::new(fixture.limiter_of([Rule::new(&*rule, slots(1))])).with_timer(timer.clone());
        let limiter = layer.handle();
        let first = limiter.limiter();
        let address = match kind {
            Kind::Task => None,
            Kind::Response => Some(serve(page(&finish).layer(layer)).await),
            Kind::GatewayResponse => Some(start_gateway(serve(page(&finish)).await, layer).await.0),
        };
        Self { rule, limiter, first, timer, finish, address }
    }

    async fn left(&self) -> u64 {
        left(&*self.limiter.limiter()).await
    }

    /// Sets the number of slots, as a reload does.
    fn set_slots(&self, max: u64) {
        let rules = RuleSet::new([Rule::new(&*self.rule, slots(max))]).unwrap();
        self.limiter.replace(self.first.with_rules(rules));
    }

    /// Starts work that gets a slot, and waits until it has begun and its renewals sleep.
    async fn start(&self) -> JoinHandle<End> {
        // Tasks sleep each for itself.
        let sleeps = if self.address.is_none() { self.timer.pending_sleeps() + 1 } else { 1 };
        let work = match self.address {
            None => {
                let (lease, limiter) = (hold(&*self.limiter.limiter()).await, Arc::clone(&self.first));
                let (timer, finish) = (self.timer.clone(), Arc::clone(&self.finish));
                tokio::spawn(async move {
                    match limiter.hold(lease, &timer, finish.acquire()).await {
                        Ok(_) => End::Finished,
                        Err(error) => {
                            assert!(matches!(error, GrantError::NotHeld), "{error}");
                            End::Stopped
                        }
                    }
                })
            }
            Some(address) => {
                let mut client = TcpStream::connect(address).await.unwrap();
                client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
                let mut received = Vec::new();
                while !received.ends_with(b"part\r\n") {
                    assert_ne!(client.read_buf(&mut received).await.unwrap(), 0, "{received:?}");
                }
                assert!(received.starts_with(b"HTTP/1.1 200 "), "{received:?}");
                tokio::spawn(async move {
                    let _ = client.read_to_end(&mut received).await;
                    if received.ends_with(b"part\r\n0\r\n\r\n") { End::Finished } else { End::Stopped }
                })
            }
        };
        until(|| self.timer.pending_sleeps() >= sleeps).await;
        work
    }

    /// Waits until the slots were renewed.
    async fn renew(&self) {
        self.timer.advance(LEASE / 3);
        until(|| self.timer.pending_sleeps() > 0).await;
    }
}

#[tokio::test]
async fn work_holds_its_slot_as_long_as_it_lasts_and_releases_it_at_the_end() {
    with_each_kind_of_work(async |fixture, place| {
        let work = place.start().await;
        for _ in 0..10 {
            assert!(!take(&*place.limiter.limiter()).await.is_allowed());
            fixture.clock.advance(LEASE / 3);
            place.renew().await;
        }
        assert_eq!((place.left().await, work.is_finished()), (0, false));
        place.finish.add_permits(1);
        assert_eq!(work.await.unwrap(), End::Finished);
        wait_for_left(&place.limiter.limiter(), 1).await;
    })
    .await;
}

#[tokio::test]
async fn work_that_is_dropped_releases_its_slot() {
    with_each_kind_of_work(async |_, place| {
        let work = place.start().await;
        assert_eq!(place.left().await, 0);
        work.abort();
        wait_for_left(&place.limiter.limiter(), 1).await;
    })
    .await;
}

#[tokio::test]
async fn work_whose_slot_the_store_has_lost_takes_it_again_if_there_is_room() {
    with_each_kind_of_work(async |_, place| {
        let work = place.start().await;
        place.limiter.limiter().forget(&Request::new("")).await.unwrap();
        assert_eq!(place.left().await, 1);
        place.renew().await;
        assert_eq!(place.left().await, 0);
        place.finish.add_permits(1);
        assert_eq!(work.await.unwrap(), End::Finished);
    })
    .await;
}

/// At most the limit is counted: the other one has taken the only slot.
#[tokio::test]
async fn work_whose_slot_the_store_has_lost_and_another_has_taken_is_stopped() {
    with_each_kind_of_work(async |_, place| {
        let work = place.start().await;
        place.limiter.limiter().forget(&Request::new("")).await.unwrap();
        let _other = hold(&*place.limiter.limiter()).await;
        place.timer.advance(LEASE / 3);
        assert_eq!((work.await.unwrap(), place.left().await), (End::Stopped, 0));
    })
    .await;
}

#[tokio::test]
async fn work_above_a_lowered_limit_is_stopped_at_its_next_renewal() {
    with_each_kind_of_work(async |_, place| {
        place.set_slots(3);
        let mut work = [place.start().await, place.start().await, place.start().await];
        place.set_slots(1);
        place.timer.advance(LEASE / 3);
        until(|| work.iter().filter(|work| work.is_finished()).count() == 2).await;
        place.finish.add_permits(1);
        let mut finished = 0;
        for work in &mut work {
            finished += u32::from(work.await.unwrap() == End::Finished);
        }
        assert_eq!(finished, 1);
        wait_for_left(&place.limiter.limiter(), 1).await;
    })
    .await;
}

/// Its renewals measure time by their own clock.
#[tokio::test]
async fn a_clock_of_the_store_that_jumps_stops_no_work_if_there_is_room() {
    with_each_kind_of_work(async |fixture, place| {
        let (work, start) = (place.start().await, fixture.clock.now());
        for jump in [10 * LEASE, 30 * LEASE] {
            fixture.clock.set(start.plus(jump));
            assert_eq!(place.left().await, 1, "its slot has run out");
            place.renew().await;
            assert_eq!(place.left().await, 0, "it was taken again");
        }
        fixture.clock.set(Timestamp::from_micros(start.as_micros() - 3_600_000_000));
        place.renew().await;
        assert!(!take(&*place.limiter.limiter()).await.is_allowed());
        place.finish.add_permits(1);
        assert_eq!(work.await.unwrap(), End::Finished);
        fixture.clock.set(start);
    })
    .await;
}

#[tokio::test]
async fn a_task_that_panics_releases_its_slot() {
    on_every_store(async |fixture| {
        let limiter = Arc::new(fixture.limiter(slots(1)));
        let (lease, worker, timer) = (hold(&*limiter).await, Arc::clone(&limiter), fixture.clock.clone());
        let panicking = async move {
            let _ = worker.hold(lease, &timer, async { panic!("a worker fails") }).await.map(|(): ()| ());
        };
        assert!(tokio::spawn(panicking).await.unwrap_err().is_panic());
        wait_for_left(&limiter, 1).await;
    })
    .await;
}

#[tokio::test]
async fn a_task_whose_lease_has_run_out_is_stopped_and_told_so() {
    on_every_store(async |fixture| {
        let limiter = fixture.limiter(slots(1));
        let lease = hold(&limiter).await;
        let mut working = pin!(limiter.hold(lease, &fixture.clock, pending::<()>()));
        assert!(working.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        fixture.clock.advance(LEASE);
        assert!(matches!(working.await, Err(GrantError::NotHeld)));
        assert_eq!(left(&limiter).await, 1);
    })
    .await;
}
