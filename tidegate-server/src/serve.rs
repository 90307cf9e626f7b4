//! `tidegate serve`: one process, every front door, one engine behind them.
//!
//! ```text
//! options ──▶ engine (rules on a store, watched) ──▶ http │ grpc │ gateway │ admin ──▶ until a signal, then drain
//!                 └── reload: SIGHUP, a changed file
//! ```

mod admin;
mod api;
mod bounds;
mod engine;
mod envoy;
mod example;
mod forward_auth;
mod grpc;
mod health;
mod metrics;
mod openapi;
mod opening;
mod options;
mod receipts;
mod reload;
mod shared;
mod tally;
mod times;
mod watched;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::service::TowerToHyperService;
use tidegate_tower::LimitLayer;
use tokio::sync::watch;
use tokio::task::JoinSet;

pub use options::ServeArgs;
pub use reload::stopped as stop_signal;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::listen::{Listener, Tasks, Tls};
use crate::output::Output;
use engine::Engine;
use opening::Told;

/// How often is looked whether the store still answers, to say so. More often, and a store that comes and goes would fill a log.
const STORE_LOOKS: Duration = Duration::from_secs(1);

/// A server that runs.
#[derive(Debug)]
pub struct Server {
    http: SocketAddr,
    grpc: SocketAddr,
    admin: SocketAddr,
    gateway: Option<SocketAddr>,
    engine: Arc<Engine>,
    /// What is found out about the store while it runs.
    told: Told,
    stop: watch::Sender<bool>,
    doors: JoinSet<bool>,
}

/// Runs until a signal says stop, and drains.
pub fn run(arguments: &ServeArgs, output: &mut Output<'_>) -> Result<Exit, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::usage(format!("no runtime can be started: {error}")))?;
    runtime.block_on(async {
        let mut server = Server::start(arguments, output).await?;
        let deaf = |error: std::io::Error| Failure::usage(format!("signals cannot be listened to: {error}"));
        let mut stopped = std::pin::pin!(reload::stopped().map_err(deaf)?);
        let mut reloading = reload::watch(&server.engine).map_err(deaf)?;
        example::welcome(&server, output);
        let (mut store_up, mut look) = (true, tokio::time::interval(STORE_LOOKS));
        loop {
            tokio::select! {
                () = &mut stopped => break,
                told = reloading.told() => output.info(told),
                Some(told) = server.told.recv() => output.warn(told),
                _ = look.tick() => {
                    let up = server.engine.is_store_up();
                    match (std::mem::replace(&mut store_up, up), up) {
                        (true, false) => {
                            let why = server.engine.limiter().store().why();
                            output.warn(format!("the store fails: {why}. Each rule does what its on_failure says"));
                        }
                        (false, true) => output.info("store: it answers again"),
                        _ => {}
                    }
                }
            }
        }
        output.info("stopping: no new connections; open requests may end");
        drop(reloading);
        let clean = server.stop().await;
        if !clean {
            output.warn("some requests did not end in time");
        }
        Ok(Exit::Success)
    })
}

impl Server {
    /// Opens the store, reads the rules, and listens; port 0 takes a free one.
    pub(crate) async fn start(arguments: &ServeArgs, output: &mut Output<'_>) -> Result<Self, Failure> {
        let (engine, told) = Engine::open(arguments, output).await?;
        let engine = Arc::new(engine);
        let gateway = arguments.gateway()?;
        let listen = |flag, address, tls: Option<&Tls>| listen(flag, address, tls.cloned(), arguments);
        let (http, http_listener) = listen("--http", arguments.http, engine.tls()).await?;
        let (grpc, grpc_listener) = listen("--grpc", arguments.grpc, engine.tls()).await?;
        let (admin, admin_listener) = listen("--admin", arguments.admin, None).await?;
        let (stop, stopping) = watch::channel(false);
        let (timeout, mut doors) = (Duration::from_secs(arguments.request_timeout), JoinSet::new());
        let api = api::router(Arc::clone(&engine)).merge(crate::envoy::router(engine.rate_limits()));
        doors.spawn(serve(http_listener, bounds::http(api, timeout), stopping.clone()));
        let admin_pages = bounds::http(admin::router(Arc::clone(&engine)), timeout);
        doors.spawn(serve(admin_listener, admin_pages, stopping.clone()));
        let services = grpc::services(engine.rate_limits(), timeout, stopped(stopping.clone())).await;
        let stopped_grpc = stopped(stopping.clone());
        doors.spawn(
            async move { grpc_listener.with_write_batching().serve(services, Tasks::new(), stopped_grpc).await },
        );
        let gateway = match gateway {
            None => None,
            Some((address, gateway)) => {
                let (address, listener) = listen("--gateway", address, engine.gateway_tls()).await?;
                let layer = LimitLayer::of(engine.handle().clone()).with_front_door("gateway");
                doors.spawn(gateway.serve(listener, layer, stopped(stopping)));
                Some(address)
            }
        };
        Ok(Self { http, grpc, admin, gateway, engine, told, stop, doors })
    }

    /// Where the check API listens.
    pub const fn http(&self) -> SocketAddr {
        self.http
    }

    /// Where Envoy's rate limit service listens.
    pub const fn grpc(&self) -> SocketAddr {
        self.grpc
    }

    /// Where the gateway listens, if there is one.
    pub const fn gateway(&self) -> Option<SocketAddr> {
        self.gateway
    }

    /// Where the metrics are.
    pub const fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Takes no new connections, lets open requests end, and says whether they all did in time.
    pub async fn stop(mut self) -> bool {
        let _ = self.stop.send(true);
        let mut all = true;
        while let Some(ended) = self.doors.join_next().await {
            all &= ended.unwrap_or(false);
        }
        all
    }
}

async fn listen(
    flag: &str,
    address: SocketAddr,
    tls: Option<Tls>,
    arguments: &ServeArgs,
) -> Result<(SocketAddr, Listener), Failure> {
    let failed = |error: std::io::Error| Failure::usage(format!("{flag} {address}: {error}; choose another address"));
    let listener = Listener::bind(address).await.map_err(failed)?;
    Ok((listener.address().map_err(failed)?, listener.with_tls(tls).with_limits(arguments.limits())))
}

async fn serve(listener: Listener, app: axum::Router, stopping: watch::Receiver<bool>) -> bool {
    listener.with_client_info().serve(TowerToHyperService::new(app), Tasks::new(), stopped(stopping)).await
}

async fn stopped(mut stopping: watch::Receiver<bool>) {
    // An error means that the sender is gone, and with it the server.
    let _ = stopping.wait_for(|stopped| *stopped).await;
}
