//! `tidegate serve`: one process with every front end and one engine behind them.
//!
//! ```text
//! options ──▶ log ──▶ engine (rules on a store, observed) ──▶ http │ grpc │ gateway │ admin ──▶ until a signal, then drain
//!                         └── reload: SIGHUP, a changed file
//! ```

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hyper_util::service::TowerToHyperService;
use tidegate_tower::LimitLayer;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::admin;
use crate::admin::{AdminAccess, DoorAddresses};
use crate::args::serve_args::ServeArgs;
use crate::calls::browser_guard::BrowserGuard;
use crate::calls::request_limits;
use crate::calls::request_limits::CallTimeouts;
use crate::command::exit::Exit;
use crate::command::failure::Failure;
use crate::command::output::Output;
use crate::doors::check;
use crate::doors::envoy::grpc;
use crate::engine::Engine;
use crate::lifecycle::reload::{self, ReloadableFiles};
use crate::lifecycle::start_page;
use crate::listen::{Gauge, Listener, ListenerStats, RequestScope, ResolveClient, Tasks, Tls};
use crate::observe::log::bound_log::BoundLog;
use crate::observe::log::logging;
use crate::observe::log::status_log::StatusLog;

/// Interval of the status log, and window of the refusal log. With a shorter one, a store that comes and goes would fill the log.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// A server that is running.
#[derive(Debug)]
pub struct Server {
    addresses: DoorAddresses,
    pub(crate) engine: Arc<Engine>,
    access: Option<Arc<AdminAccess>>,
    stop: watch::Sender<bool>,
    front_doors: JoinSet<bool>,
}

/// Time for the releases of the last requests to reach the store. Otherwise their slots would be held for the rest of the lease, and
/// clients that come back to another instance would be denied.
const LAST_RELEASES_TIMEOUT: Duration = Duration::from_secs(1);

/// Interval at which that is looked for.
const LAST_RELEASES_INTERVAL: Duration = Duration::from_millis(5);

/// A worker takes every second task from the queue of all workers. A flood of requests overflows into that queue; at the runtime's own
/// interval, a bystander's request would wait there for hundreds of tasks that became ready after it.
const GLOBAL_QUEUE_INTERVAL_POLLS: u32 = 2;

/// Runs a server until a signal, then drains it.
pub fn run(arguments: &ServeArgs, output: &mut Output<'_>) -> Result<Exit, Failure> {
    let rust_log = std::env::var_os("RUST_LOG");
    let log = logging::start(&arguments.log, rust_log.as_deref(), output.uses_error_color())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .global_queue_interval(GLOBAL_QUEUE_INTERVAL_POLLS)
        .build();
    let runtime = runtime.map_err(|error| Failure::usage(format!("no runtime can be started: {error}")))?;
    runtime.block_on(async {
        let failed = |error: std::io::Error| Failure::usage(format!("signals cannot be received: {error}"));
        let files = ReloadableFiles::new(arguments).map_err(failed)?;
        let server = Server::start(arguments).await?;
        let stopped = reload::stopped().map_err(failed)?;
        let reloading = files.watch(&server.engine, server.access.as_ref());
        // Warnings are printed before the start page.
        log.flush();
        start_page::print(&server, output);
        report_until(&server.engine, stopped).await;
        tracing::info!(target: "tidegate::server", "stopping: no new connections; open requests may end");
        drop(reloading);
        let engine = Arc::clone(&server.engine);
        if !server.stop().await {
            tracing::warn!(target: "tidegate::server", "some requests did not end in time");
        }
        engine.refusals().end_window();
        Ok(Exit::Success)
    })
}

/// Logs changes of the store's status, bounds that were reached, and refusals that were suppressed, until `stopped`.
async fn report_until(engine: &Engine, stopped: impl Future<Output = ()>) {
    let mut stopped = std::pin::pin!(stopped);
    let (mut status_log, mut bound_log) = (StatusLog::new(), BoundLog::default());
    let mut interval = tokio::time::interval(REPORT_INTERVAL);
    loop {
        tokio::select! {
            () = &mut stopped => return,
            _ = interval.tick() => {}
        }
        engine.refusals().end_window();
        status_log.update(engine.store());
        bound_log.update(engine.metrics().addresses());
    }
}

impl Server {
    /// Opens the store, reads the rules, and listens where it is not off; port 0 takes a free one.
    pub(crate) async fn start(arguments: &ServeArgs) -> Result<Self, Failure> {
        let access = arguments.admin_access()?.map(Arc::new);
        let plan = arguments.descriptor_plan();
        let gateway = arguments.gateway(&plan)?;
        let engine = Arc::new(Engine::open(arguments).await?);
        let stats = engine.metrics().addresses();
        let limits = arguments.limits(plan.connections);
        let listen = |flag, address: Option<SocketAddr>, tls: Option<&Tls>, stats: &Arc<ListenerStats>| {
            let (tls, stats, limits, clients) = (tls.cloned(), Arc::clone(stats), limits.clone(), engine.clients());
            async move {
                let Some(address) = address else { return Ok(None) };
                let (address, listener) = listen(flag, address).await?;
                let listener = listener.with_tls(tls).with_limits(limits).with_stats(stats);
                let listener = listener.with_resolver(Arc::clone(clients) as Arc<dyn ResolveClient>);
                Ok::<_, Failure>(Some((address, listener)))
            }
        };
        // All of them first, so that a server that cannot start serves nothing.
        let http = listen("--http", arguments.http, engine.tls(), &stats.http).await?;
        let grpc = listen("--grpc", arguments.grpc, engine.tls(), &stats.grpc).await?;
        let admin = listen("--admin", arguments.admin, None, &stats.admin).await?;
        let gateway_address = gateway.as_ref().map(|(address, _)| *address);
        let at_gateway = listen("--gateway", gateway_address, engine.gateway_tls(), &stats.gateway).await?;
        let address = |listening: &Option<(SocketAddr, Listener)>| listening.as_ref().map(|(address, _)| *address);
        let [http_address, grpc_address, admin_address, gateway_address] =
            [&http, &grpc, &admin, &at_gateway].map(address);
        let addresses =
            DoorAddresses { http: http_address, grpc: grpc_address, gateway: gateway_address, admin: admin_address };
        let (stop, stopping) = watch::channel(false);
        let (timeout, mut front_doors) = (arguments.request_timeout, JoinSet::new());
        if let Some((address, listener)) = http {
            let api = check::router(Arc::clone(&engine), BrowserGuard::new(address), stopping.clone());
            let waiting = Some((check::ACQUIRE_PATH, engine.acquire_calls().max_wait()));
            let api = request_limits::http(api, CallTimeouts { call: timeout, waiting }, &stats.http);
            front_doors.spawn(serve(listener, api, stopping.clone()));
        }
        if let Some((_, listener)) = grpc {
            let services = grpc::services(engine.rate_limits(), timeout, stopped(stopping.clone())).await;
            let stopped_grpc = stopped(stopping.clone());
            front_doors.spawn(async move {
                let listener = listener.with_write_batching().with_request_bounds(RequestScope::Call);
                listener.serve(services, Tasks::new(), stopped_grpc).await
            });
        }
        if let (Some((_, listener)), Some((_, gateway))) = (at_gateway, gateway) {
            let layer = LimitLayer::from_handle(engine.handle().clone()).with_front_door("gateway");
            front_doors.spawn(gateway.serve(listener, layer, stopped(stopping.clone())));
        }
        if let (Some((address, listener)), Some(access)) = (admin, &access) {
            let pages = admin::router(Arc::clone(&engine), address, addresses, access);
            let pages = request_limits::http(pages, CallTimeouts { call: timeout, waiting: None }, &stats.admin);
            let listener = listener.with_limits(arguments.limits(plan.admin_connections));
            front_doors.spawn(serve(listener, pages, stopping));
        }
        // Last, so that an error in the flags stands alone.
        plan.log();
        Ok(Self { addresses, engine, access, stop, front_doors })
    }

    /// Address of the check API, unless it is off.
    pub const fn http(&self) -> Option<SocketAddr> {
        self.addresses.http
    }

    /// Address of Envoy's rate limit service, unless it is off.
    pub const fn grpc(&self) -> Option<SocketAddr> {
        self.addresses.grpc
    }

    /// Address of the gateway, if there is one.
    pub const fn gateway(&self) -> Option<SocketAddr> {
        self.addresses.gateway
    }

    /// Address of the metrics, unless it is off.
    pub const fn admin(&self) -> Option<SocketAddr> {
        self.addresses.admin
    }

    /// Accepts no new connections and waits for open requests. Returns whether all of them ended in time.
    pub async fn stop(mut self) -> bool {
        let _ = self.stop.send(true);
        let mut all = true;
        while let Some(ended) = self.front_doors.join_next().await {
            all &= ended.unwrap_or(false);
        }
        let _ = tokio::time::timeout(LAST_RELEASES_TIMEOUT, wait_for_releases(&self.engine)).await;
        if let Some(ledger) = self.engine.ledger() {
            ledger.stop().await;
        }
        all
    }
}

/// Waits until no connection is open, no lease is held, and all releases are sent.
async fn wait_for_releases(engine: &Engine) {
    let mut interval = tokio::time::interval(LAST_RELEASES_INTERVAL);
    let gateway = &engine.metrics().addresses().gateway;
    while gateway.value(Gauge::Connections) + engine.handle().held_leases() > 0
        || engine.store().inner().background_adjustments() > 0
    {
        interval.tick().await;
    }
}

async fn listen(flag: &str, address: SocketAddr) -> Result<(SocketAddr, Listener), Failure> {
    let failed = |error: std::io::Error| Failure::usage(format!("{flag} {address}: {error}; choose another address"));
    let listener = match Listener::bind(address).await {
        // `:8080` means every address also on a machine without IPv6.
        Err(_) if address.ip() == Ipv6Addr::UNSPECIFIED => {
            Listener::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()))).await
        }
        bound => bound,
    };
    let listener = listener.map_err(failed)?;
    Ok((listener.address().map_err(failed)?, listener))
}

async fn serve(listener: Listener, app: axum::Router, stopping: watch::Receiver<bool>) -> bool {
    let listener = listener.with_client_info().with_request_bounds(RequestScope::Call);
    listener.serve(TowerToHyperService::new(app), Tasks::new(), stopped(stopping)).await
}

pub(crate) async fn stopped(mut stopping: watch::Receiver<bool>) {
    // An error means that the sender is gone, and with it the server.
    let _ = stopping.wait_for(|stopped| *stopped).await;
}
