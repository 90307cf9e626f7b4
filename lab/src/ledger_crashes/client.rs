//! `LoadClient`: consumes, reserves, commits, releases and takes slots at random, and notes every call and its answer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use conformance::http_client::{HttpClient, HttpResponse, NoResponse, json_request};
use fastrand::Rng;
use serde_json::{Value, json};
use tidegate::{Clock, SystemClock};
use tokio::time::timeout;

use super::call::{Answer, CallKind, CallRecord};
use super::load::Load;
use super::rules::{Account, Quota};
use crate::traffic::Pace;

/// The largest cost of a call.
pub(super) const MAX_COST: u64 = 5;

/// The time between two calls of a client, at least: a client whose server is dead does not take the processor from the others.
pub(super) const PACE: Duration = Duration::from_millis(2);

/// After this time, a call counts as unanswered. Instances answer long before, unless they hang.
const MAX_ANSWER_TIME: Duration = Duration::from_secs(30);

/// Reservations that a client knows. The oldest are left to run out.
const MAX_RESERVATIONS: usize = 8;

pub(super) struct LoadClient {
    load: Arc<Load>,
    number: usize,
    rng: Rng,
    http: HttpClient,
    reservations: Vec<Grant>,
    /// Reservations made so far, for their keys.
    made: u64,
}

/// A reservation of this client. Every repeat of a step is the same call.
struct Grant {
    account: Account,
    key: String,
    cost: u64,
    /// The id, once an answer had it.
    id: Option<String>,
    /// What is consumed in the end; `None` if it is released.
    actual: Option<u64>,
}

impl LoadClient {
    pub(super) fn new(load: &Arc<Load>, number: usize, seed: u64) -> Self {
        let (load, rng, http) = (Arc::clone(load), Rng::with_seed(seed), HttpClient::default());
        Self { load, number, rng, http, reservations: Vec::new(), made: 0 }
    }

    /// Calls until the load ends.
    pub(super) async fn run(mut self, mut pace: Pace) {
        while pace.next().await {
            match self.rng.u8(..100) {
                0..55 => self.consume().await,
                55..70 => self.reserve_anew().await,
                70..90 => self.advance_reservation().await,
                _ => self.export().await,
            }
        }
    }

    /// Takes all slots of a tenant, one after the other, and releases them. Returns whether it got all.
    pub(super) async fn take_all_slots(&mut self, tenant: &str, slots: usize) -> bool {
        let account = Account { quota: Quota::Export, tenant: tenant.to_owned() };
        let mut leases = Vec::new();
        for _ in 0..slots {
            let (answer, body) = self.take_slot(&account, 1).await;
            if answer == Answer::Done {
                leases.extend(body["lease"]["id"].as_str().map(str::to_owned));
            }
        }
        let taken = leases.len();
        for lease in leases {
            self.release_slot(&lease).await;
        }
        taken == slots
    }

    async fn consume(&mut self) {
        let quota = [Quota::Sync, Quota::Async, Quota::Local][self.rng.usize(..3)];
        let (account, cost) = (self.account(quota), self.rng.u64(1..=MAX_COST));
        let body = account.request(json!({ "cost": cost }));
        self.call(&account, CallKind::Consume { cost }, "/v1/check", &body).await;
    }

    async fn export(&mut self) {
        let (account, cost) = (self.account(Quota::Export), self.rng.u64(1..=MAX_COST));
        let (answer, body) = self.take_slot(&account, cost).await;
        // Some holders die: their slot is free again after the lease.
        if let (Answer::Done, Some(lease), true) = (answer, body["lease"]["id"].as_str(), self.rng.u8(..5) > 0) {
            self.release_slot(lease).await;
        }
    }

    async fn take_slot(&mut self, account: &Account, cost: u64) -> (Answer, Value) {
        let body = account.request(json!({ "cost": cost }));
        self.call(account, CallKind::Consume { cost }, "/v1/leases", &body).await
    }

    async fn release_slot(&mut self, lease: &str) {
        let instance = self.pick_instance();
        if let Some(to) = self.load.instances[instance].http() {
            // If that fails, the slot runs out with its lease.
            let _ = send(&mut self.http, to, "DELETE", &format!("/v1/leases/{lease}"), "").await;
        }
    }

    async fn reserve_anew(&mut self) {
        let quota = if self.rng.bool() { Quota::Sync } else { Quota::Async };
        let (account, cost) = (self.account(quota), self.rng.u64(1..=MAX_COST));
        self.made += 1;
        let key = format!("{}-{}-{}", self.load.round, self.number, self.made);
        let actual = (self.rng.u8(..4) > 0).then(|| self.rng.u64(1..=cost));
        let reservation = Grant { account, key, cost, id: None, actual };
        let id = self.reserve(&reservation).await;
        if self.reservations.len() == MAX_RESERVATIONS {
            self.reservations.remove(0);
        }
        self.reservations.push(Grant { id, ..reservation });
    }

    /// The next step of a reservation, or a step that it has made already.
    async fn advance_reservation(&mut self) {
        if self.reservations.is_empty() {
            return;
        }
        let index = self.rng.usize(..self.reservations.len());
        let reservation = self.reservations.swap_remove(index);
        let may_repeat = self.load.may_repeat_reservations;
        let repeats = may_repeat && self.rng.u8(..5) == 0;
        let id = match &reservation.id {
            Some(id) if !repeats => Some(id.clone()),
            known if may_repeat => self.reserve(&reservation).await.or_else(|| known.clone()),
            _ => return,
        };
        if let (Some(id), false) = (&id, repeats) {
            self.end(&reservation, id).await;
        }
        // Ended ones stay for a while, so that their last step is repeated.
        if self.rng.u8(..3) > 0 {
            self.reservations.push(Grant { id, ..reservation });
        }
    }

    async fn reserve(&mut self, reservation: &Grant) -> Option<String> {
        let Grant { account, key, cost, .. } = reservation;
        let body = account.request(json!({ "cost": cost, "idempotency_key": key }));
        let kind = CallKind::Reserve { key: key.clone(), cost: *cost };
        let (_, answer) = self.call(account, kind, "/v1/quotas/reserve", &body).await;
        answer["reservation"]["id"].as_str().map(str::to_owned)
    }

    async fn end(&mut self, reservation: &Grant, id: &str) {
        let Grant { account, key, actual, .. } = reservation;
        let (kind, path, body) = match *actual {
            Some(cost) => {
                (CallKind::Commit { key: key.clone(), cost }, "/v1/quotas/commit", json!({ "id": id, "cost": cost }))
            }
            None => (CallKind::Release { key: key.clone() }, "/v1/quotas/release", json!({ "id": id })),
        };
        self.call(account, kind, path, &body).await;
    }

    /// Calls an instance, and notes the answer.
    async fn call(&mut self, account: &Account, kind: CallKind, path: &str, body: &Value) -> (Answer, Value) {
        let (clock, instance) = (SystemClock::new(), self.pick_instance());
        let began = clock.now();
        let response = post(&mut self.http, self.load.instances[instance].http(), path, body).await;
        let ended = clock.now();
        let answer = match &response {
            Ok(response) => read_answer(account.quota, response),
            Err(NoResponse::Unsent) => Answer::Unsent,
            Err(NoResponse::Missing) => Answer::Missing,
        };
        let body = response.map_or(Value::Null, |response| serde_json::from_slice(&response.body).unwrap_or_default());
        let (round, client, account) = (self.load.round, self.number, account.clone());
        let call = CallRecord { round, client, instance, account, kind, began, ended, answer };
        self.load.notes.lock().unwrap().push(call);
        (answer, body)
    }

    fn pick_instance(&mut self) -> usize {
        self.rng.usize(..self.load.instances.len())
    }

    fn account(&mut self, quota: Quota) -> Account {
        let tenant = self.rng.usize(..self.load.tenants.len());
        Account { quota, tenant: self.load.tenants[tenant].clone() }
    }
}

/// Posts JSON to an instance, unless it is dead.
pub(super) async fn post(
    http: &mut HttpClient,
    to: Option<SocketAddr>,
    path: &str,
    body: &Value,
) -> Result<HttpResponse, NoResponse> {
    send(http, to.ok_or(NoResponse::Unsent)?, "POST", path, &body.to_string()).await
}

/// Sends a call, and never twice. One that is not answered for a long time is missing.
pub(super) async fn send(
    http: &mut HttpClient,
    to: SocketAddr,
    method: &str,
    path: &str,
    body: &str,
) -> Result<HttpResponse, NoResponse> {
    let request = json_request(method, path, body);
    timeout(MAX_ANSWER_TIME, http.send(to, request.as_bytes())).await.unwrap_or(Err(NoResponse::Missing))
}

fn read_answer(quota: Quota, response: &HttpResponse) -> Answer {
    match response.status {
        200 => {
            let body = response.json();
            let is_alone = body["degraded"] == json!(true);
            assert!(quota == Quota::Local || !is_alone, "a closed rule decided without its store: {body}");
            match body["allowed"] == json!(false) {
                true => Answer::Denied,
                false if is_alone => Answer::DoneAlone,
                false => Answer::Done,
            }
        }
        404 => Answer::NotFound,
        409 => Answer::Ended,
        503 => Answer::Failed,
        _ => panic!("an answer that no call has: {response:?}"),
    }
}
