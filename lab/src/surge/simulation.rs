//! `Simulation`: what all clients of a phase share: connections to the gateways, the time, and the request log.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue, RETRY_AFTER};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::Full;
use tidegate::sync::{Mutex, MutexGuard};
use tidegate::{Timer, Timestamp};

use super::endpoint::Endpoint;
use super::options::Scenario;
use super::request_log::{ClientKind, RequestLog, RequestOutcome, SentRequest};
use crate::traffic::{Connection, Protocol, RequestError};

const USER_ID_HEADER: HeaderName = HeaderName::from_static("x-user-id");

/// Requests in flight per TCP connection: the maximum of the gateway.
const MAX_STREAMS_PER_CONNECTION: u16 = 100;

/// Bots give up early; the one that requests rides has sent a thousand more requests by then.
const BOT_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause between the last preparation and the start.
const START_DELAY: Duration = Duration::from_millis(100);

/// What the clients of a phase share.
pub(crate) struct Simulation {
    gateways: Vec<GatewayClient>,
    next_gateway: AtomicUsize,
    pub(crate) timer: Arc<dyn Timer>,
    request_log: Mutex<RequestLog>,
    pub(crate) scenario: Scenario,
    pub(crate) start: Timestamp,
    pub(crate) end: Timestamp,
}

/// The connections to one gateway that all clients share.
struct GatewayClient {
    address: String,
    idle: Mutex<Vec<Connection>>,
}

/// Who sends requests.
#[derive(Clone)]
pub(crate) struct Client {
    kind: ClientKind,
    /// The number of a rider.
    number: u32,
    user: HeaderValue,
    timeout: Duration,
}

/// The outcome of a request, as its client sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestResult {
    pub(crate) at: Timestamp,
    pub(crate) outcome: RequestOutcome,
    /// The `Retry-After` of the response.
    pub(crate) retry_after: Option<Duration>,
}

impl Simulation {
    /// Connects to each gateway, so that no request waits for it. The simulation starts shortly after.
    pub(crate) async fn connect(
        addresses: &[SocketAddr],
        timer: Arc<dyn Timer>,
        scenario: Scenario,
    ) -> Result<Self, RequestError> {
        let mut gateways = Vec::new();
        for address in addresses {
            let mut gateway = GatewayClient { address: address.to_string(), idle: Mutex::default() };
            gateway.idle = Mutex::new(gateway.connect().await?);
            gateways.push(gateway);
        }
        let start = timer.now().plus(START_DELAY);
        Ok(Self {
            gateways,
            next_gateway: AtomicUsize::new(0),
            timer,
            request_log: Mutex::new(RequestLog::new(start, scenario.phase_duration, scenario.users)),
            scenario,
            start,
            end: start.plus(scenario.phase_duration),
        })
    }

    /// Waits until `due`. Returns `false` if the simulation has ended by then.
    pub(crate) async fn wait_until(&self, due: Timestamp) -> bool {
        self.timer.sleep(due.since(self.timer.now())).await;
        due < self.end
    }

    /// Sends a request to the next gateway, and waits for the response.
    pub(crate) async fn send(&self, client: &Client, endpoint: Endpoint, due: Timestamp) -> RequestResult {
        let gateway = &self.gateways[self.next_gateway.fetch_add(1, Ordering::Relaxed) % self.gateways.len()];
        let exchange = async {
            let mut connection = gateway.idle_connection().await?;
            let response = connection.send(client.request(endpoint), client.timeout).await?;
            gateway.idle.lock().push(connection);
            Ok(response)
        };
        self.log(client, endpoint, due, exchange).await
    }

    /// Sends a request over a connection that the client keeps for itself, and waits for the response.
    pub(crate) async fn send_over(
        &self,
        connection: &mut Connection,
        client: &Client,
        endpoint: Endpoint,
        due: Timestamp,
    ) -> RequestResult {
        self.log(client, endpoint, due, connection.send(client.request(endpoint), client.timeout)).await
    }

    /// Records an exchange in the request log.
    async fn log(
        &self,
        client: &Client,
        endpoint: Endpoint,
        due: Timestamp,
        exchange: impl Future<Output = Result<Response<Bytes>, RequestError>>,
    ) -> RequestResult {
        let (sent, &Client { kind, number, .. }) = (self.timer.now(), client);
        let id = self.request_log().begin(SentRequest { client: kind, number, endpoint, due, sent });
        let response = exchange.await;
        let at = self.timer.now();
        let outcome = match response.as_ref().map(Response::status) {
            Ok(StatusCode::OK) => RequestOutcome::Served,
            Ok(StatusCode::TOO_MANY_REQUESTS) => RequestOutcome::Refused,
            Err(RequestError::TimedOut) => RequestOutcome::TimedOut,
            Ok(_) | Err(RequestError::Unreachable | RequestError::Broken) => RequestOutcome::Failed,
        };
        self.request_log().end(id, at, outcome);
        let retry_after =
            response.ok().and_then(|response| response.headers().get(RETRY_AFTER)?.to_str().ok()?.parse().ok());
        RequestResult { at, outcome, retry_after: retry_after.map(Duration::from_secs) }
    }

    pub(crate) fn request_log(&self) -> MutexGuard<'_, RequestLog> {
        self.request_log.lock()
    }
}

impl GatewayClient {
    async fn connect(&self) -> Result<Vec<Connection>, RequestError> {
        Connection::open_many(Protocol::Http2, &self.address, MAX_STREAMS_PER_CONNECTION).await
    }

    /// An idle connection, or a new one.
    async fn idle_connection(&self) -> Result<Connection, RequestError> {
        let idle = self.idle.lock().pop();
        if let Some(connection) = idle {
            return Ok(connection);
        }
        let mut connections = self.connect().await?;
        let connection = connections.pop().ok_or(RequestError::Unreachable)?;
        self.idle.lock().extend(connections);
        Ok(connection)
    }
}

impl Client {
    /// A client with a user ID that is valid in a header, and the patience of a rider or a bot.
    pub(crate) fn new(kind: ClientKind, number: u32, user: &str, scenario: &Scenario) -> Self {
        let is_bot = matches!(kind, ClientKind::Bot | ClientKind::Flood);
        let timeout = if is_bot { BOT_TIMEOUT.min(scenario.timeout) } else { scenario.timeout };
        Self { kind, number, user: HeaderValue::from_str(user).expect("letters, digits and hyphens"), timeout }
    }

    fn request(&self, endpoint: Endpoint) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(Bytes::new()));
        *request.method_mut() = endpoint.method();
        *request.uri_mut() = Uri::from_static(endpoint.path());
        request.headers_mut().insert(USER_ID_HEADER, self.user.clone());
        request
    }
}
