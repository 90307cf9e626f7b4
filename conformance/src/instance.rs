//! `Instance`: one instance, and the front end by which callers take slots and reserve units there: the library or the check API. A suite runs
//! one behaviour by both, on every store, with a clock that it moves.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::grants::{GrantError, Retake};
use tidegate::{
    Clock, Decision, Ending, Grant, Limiter, ManualClock, MemoryStore, Request, Rule, RuleSet, Secret, Timestamp,
};
use tidegate_server::{AnyStore, CheckApi};
use tidegate_tower::Handle;

use crate::server::Server;
use crate::suite::{START, StoreFixture, long_timeout_options, on_every_store};

/// For how long an instance reserves units.
pub const RESERVATION_TTL: Duration = Duration::from_secs(60);

/// By which callers ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrontEnd {
    /// `Limiter`, by a caller that follows its documentation.
    Library,
    /// `/v1/check`, `/v1/leases` and `/v1/quotas`.
    CheckApi,
}

/// A front end on a store, for one behaviour.
#[derive(Debug)]
pub struct Mount<'f> {
    pub clock: ManualClock,
    front_end: FrontEnd,
    fixture: &'f StoreFixture,
    /// The state of all instances, unless it is on a server.
    memory: Arc<MemoryStore>,
}

#[derive(Debug)]
pub struct Instance {
    clock: ManualClock,
    limiter: Handle<AnyStore>,
    /// The same by HTTP, if callers ask by it.
    api: Option<CheckApi>,
}

/// The answer to a request.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub is_allowed: bool,
    /// The rule that denies.
    pub rule: Option<String>,
    pub retry_after: Option<Duration>,
    /// What the caller holds now.
    pub held: Option<Held>,
}

/// What a caller holds: slots or a reservation. A copy is what it sends when it repeats a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// An id, or the bytes of a grant: any instance takes it.
    token: Vec<u8>,
    is_lease: bool,
    /// How long it lasts unless it is renewed or ends before.
    pub lasts: Duration,
    /// When the caller knew that it was held.
    confirmed_at: Timestamp,
}

/// Why a call by what a caller holds, or with a key, was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    NotHeld,
    AlreadyEnded,
    KeyReused,
    StoreFailed,
}

/// Runs `behaviour` by each front end, on each store.
pub async fn by_each_front_end(behaviour: impl AsyncFn(&Mount<'_>)) {
    by_front_ends(&[FrontEnd::Library, FrontEnd::CheckApi], behaviour).await;
}

/// Runs `behaviour` by the check API alone, which keeps a promise that the library leaves to its callers, on each store.
pub async fn by_the_check_api(behaviour: impl AsyncFn(&Mount<'_>)) {
    by_front_ends(&[FrontEnd::CheckApi], behaviour).await;
}

async fn by_front_ends(front_ends: &[FrontEnd], behaviour: impl AsyncFn(&Mount<'_>)) {
    on_every_store(async |fixture| {
        for front_end in front_ends {
            println!("by {front_end:?}");
            behaviour(&Mount::new(fixture, *front_end)).await;
        }
    })
    .await;
}

impl<'f> Mount<'f> {
    fn new(fixture: &'f StoreFixture, front_end: FrontEnd) -> Self {
        let clock = ManualClock::starting_at(START);
        let memory = Arc::new(MemoryStore::new().with_clock(clock.clone()));
        Self { clock, front_end, fixture, memory }
    }

    /// Starts an instance with these rules. All instances of a mount share their limits.
    pub async fn instance(&self, rules: impl IntoIterator<Item = Rule>) -> Instance {
        let store = match self.server() {
            None => AnyStore::Memory(Arc::clone(&self.memory)),
            Some(server) => {
                // What callers of another front end hold there is not theirs.
                let namespace = format!("{:?}", self.front_end).parse().unwrap();
                let options = long_timeout_options().with_clock(self.clock.clone()).with_namespace(namespace);
                AnyStore::Redis(server.store_with(options).await)
            }
        };
        let limiter = Limiter::new(RuleSet::new([]).unwrap(), store.clone()).with_reservation_ttl(RESERVATION_TTL);
        let api = (self.front_end == FrontEnd::CheckApi).then(|| {
            let line = format!("serve --secret s1 --reservation-ttl {}", RESERVATION_TTL.as_secs());
            CheckApi::start(&line, store, Arc::new(self.clock.clone())).unwrap()
        });
        let limiter = Handle::new(limiter.with_secret(&Secret::new("s1")));
        let instance = Instance { clock: self.clock.clone(), limiter, api };
        instance.set_rules(rules);
        instance
    }

    /// The server of the store, if it has one.
    pub fn server(&self) -> Option<&Server> {
        self.fixture.server()
    }
}

impl Instance {
    /// Replaces the rules, as a reload does.
    pub fn set_rules(&self, rules: impl IntoIterator<Item = Rule>) {
        let rules = RuleSet::new(rules).unwrap();
        if let Some(api) = &self.api {
            api.set_rules(rules.clone());
        }
        self.limiter.replace(self.limiter.limiter().with_rules(rules));
    }

    /// Empties the buckets of a request, as a store does that has lost its state.
    pub async fn forget(&self, request: &Request<'_>) {
        self.limiter.limiter().forget(request).await.unwrap();
    }

    /// What each limit of a request has left.
    pub async fn left(&self, request: &Request<'_>) -> Vec<u64> {
        let Some(api) = &self.api else {
            let peek = self.limiter.limiter().peek(request).await.unwrap();
            return peek.checks().iter().map(|check| check.outcome().remaining).collect();
        };
        let mut body = body(request);
        body["peek"] = json!(true);
        let peek = post(api, "/v1/check", &body).await.unwrap();
        peek["checks"].as_array().unwrap().iter().map(|check| check["remaining"].as_u64().unwrap()).collect()
    }

    /// Asks for what a request takes, and holds its slots.
    pub async fn take(&self, request: &Request<'_>) -> Answer {
        if let Some(api) = &self.api {
            return self.answer_of(&post(api, "/v1/leases", &body(request)).await.unwrap(), "lease");
        }
        let mut decision = self.limiter.limiter().check(request).await.unwrap();
        let slots = decision.take_grant().split_slots();
        self.answer(&decision, &slots, true)
    }

    /// Takes slots that are free.
    pub async fn hold(&self, request: &Request<'_>) -> Held {
        self.take(request).await.held.expect("a free slot")
    }

    /// Holds slots for another lease. A caller takes those again that the store has lost, if they cannot have run out.
    pub async fn renew(&self, held: &mut Held) -> Result<(), Refusal> {
        if let Some(api) = &self.api {
            let renewed = call(api, "PUT", &format!("/v1/leases/{}", held.id()), "").await?;
            *held = self.held_of(&renewed["lease"], true).unwrap();
            return Ok(());
        }
        let is_recent = self.clock.now().since(held.confirmed_at) < held.lasts;
        let (limiter, mut grant) = (self.limiter.limiter(), held.grant());
        limiter.renew(&grant, if is_recent { Retake::IfLost } else { Retake::No }).await?;
        grant.update_leases(limiter.rules());
        *held = self.held(&grant, true).unwrap();
        Ok(())
    }

    /// Reserves the cost of a request, with an idempotency key.
    pub async fn reserve(&self, request: &Request<'_>, key: &str) -> Result<Answer, Refusal> {
        if let Some(api) = &self.api {
            let mut body = body(request);
            body["idempotency_key"] = json!(key);
            return Ok(self.answer_of(&post(api, "/v1/quotas/reserve", &body).await?, "reservation"));
        }
        let mut decision = self.limiter.limiter().reserve(request, Some(key)).await?;
        let grant = decision.take_grant();
        Ok(self.answer(&decision, &grant, false))
    }

    /// Reserves what fits.
    pub async fn reserved(&self, request: &Request<'_>, key: &str) -> Held {
        self.reserve(request, key).await.unwrap().held.expect("enough is left")
    }

    pub async fn commit(&self, held: &Held, cost: u64) -> Result<(), Refusal> {
        match &self.api {
            Some(api) => {
                let answer = post(api, "/v1/quotas/commit", &json!({ "id": held.id(), "cost": cost })).await?;
                assert_eq!(answer, json!({ "committed": true }));
                Ok(())
            }
            None => Ok(self.limiter.limiter().end(&mut held.grant(), &Ending::Commit(cost.into())).await?),
        }
    }

    /// Ends a lease or a reservation.
    pub async fn release(&self, held: &Held) -> Result<(), Refusal> {
        let Some(api) = &self.api else {
            return Ok(self.limiter.limiter().end(&mut held.grant(), &Ending::Release).await?);
        };
        let answer = if held.is_lease {
            call(api, "DELETE", &format!("/v1/leases/{}", held.id()), "").await?
        } else {
            post(api, "/v1/quotas/release", &json!({ "id": held.id() })).await?
        };
        assert_eq!(answer, json!({ "released": true }));
        Ok(())
    }

    /// The open reservations under each limit of a request, and their units.
    pub async fn outstanding(&self, request: &Request<'_>) -> Vec<(u64, u64)> {
        let Some(api) = &self.api else {
            let open = self.limiter.limiter().outstanding(request).await.unwrap();
            return open.iter().map(|one| (one.reservations, one.units)).collect();
        };
        let open = post(api, "/v1/quotas/outstanding", &body(request)).await.unwrap();
        let number = |one: &Value, name: &str| one[name].as_u64().unwrap();
        let each = open["outstanding"].as_array().unwrap().iter();
        each.map(|one| (number(one, "reservations"), number(one, "units"))).collect()
    }

    fn answer(&self, decision: &Decision, grant: &Grant, is_lease: bool) -> Answer {
        Answer {
            is_allowed: decision.is_allowed(),
            rule: decision.rule().filter(|_| !decision.is_allowed()).map(str::to_owned),
            retry_after: decision.retry_after(),
            held: self.held(grant, is_lease),
        }
    }

    fn answer_of(&self, answer: &Value, held: &str) -> Answer {
        let is_allowed = answer["allowed"] == json!(true);
        Answer {
            is_allowed,
            rule: answer["rule"].as_str().filter(|_| !is_allowed).map(str::to_owned),
            retry_after: answer["retry_after_ms"].as_u64().map(Duration::from_millis),
            held: self.held_of(&answer[held], held == "lease"),
        }
    }

    fn held(&self, grant: &Grant, is_lease: bool) -> Option<Held> {
        let lasts = grant.duration()?;
        Some(Held { token: grant.to_bytes(), is_lease, lasts, confirmed_at: self.clock.now() })
    }

    fn held_of(&self, held: &Value, is_lease: bool) -> Option<Held> {
        let lasts = Duration::from_millis(held["expires_in_ms"].as_u64()?);
        Some(Held { token: held["id"].as_str()?.into(), is_lease, lasts, confirmed_at: self.clock.now() })
    }
}

impl Held {
    fn id(&self) -> &str {
        std::str::from_utf8(&self.token).unwrap()
    }

    fn grant(&self) -> Grant {
        Grant::from_bytes(&self.token).unwrap()
    }
}

impl From<GrantError> for Refusal {
    fn from(error: GrantError) -> Self {
        match error {
            GrantError::NotHeld => Self::NotHeld,
            GrantError::AlreadyEnded => Self::AlreadyEnded,
            GrantError::KeyReused => Self::KeyReused,
            GrantError::Store(_) => Self::StoreFailed,
            other => panic!("{other:?}"),
        }
    }
}

/// The body of a call for a request of a tenant.
fn body(request: &Request<'_>) -> Value {
    let mut body = json!({ "action": request.action(), "cost": request.cost() });
    if let Some(tenant) = request.attribute("tenant") {
        body["tenant"] = json!(tenant);
    }
    body
}

async fn post(api: &CheckApi, path: &str, body: &Value) -> Result<Value, Refusal> {
    call(api, "POST", path, &body.to_string()).await
}

async fn call(api: &CheckApi, method: &str, path: &str, body: &str) -> Result<Value, Refusal> {
    let (status, answer) = api.call(method, path, body).await.unwrap();
    match (status, answer["error"].as_str()) {
        (200, None) => Ok(answer),
        (410, Some("lease_not_held")) | (404, Some("reservation_not_found")) => Err(Refusal::NotHeld),
        (409, Some("reservation_ended")) => Err(Refusal::AlreadyEnded),
        (409, Some("idempotency_key_reused")) => Err(Refusal::KeyReused),
        (503, Some("temporarily_unavailable")) => Err(Refusal::StoreFailed),
        _ => panic!("{method} {path} {body}: {status} {answer}"),
    }
}
