//! `tidegate serve`: one process, every front door, one engine behind them.
//!
//! ```text
//! options ──▶ engine (rules on a store, watched) ──▶ http │ grpc │ gateway │ admin ──▶ until a signal, then drain
//!                 └── reload: SIGHUP, a changed file
//! ```

mod admin;
mod api;
mod engine;
mod example;
mod grpc;
mod health;
mod metrics;
mod openapi;
mod options;
mod reload;
mod tally;
mod times;
mod watched;
mod whole;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate_tower::LimitLayer;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

pub(crate) use options::ServeArgs;
pub(crate) use reload::stopped as told_to_stop;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::gateway::{Gateway, GatewayOptions};
use crate::output::Output;
use engine::Engine;

/// A server that runs.
#[derive(Debug)]
pub struct Server {
    http: SocketAddr,
    grpc: SocketAddr,
    admin: SocketAddr,
    gateway: Option<SocketAddr>,
    engine: Arc<Engine>,
    stop: watch::Sender<bool>,
    doors: JoinSet<std::io::Result<()>>,
    drain: Duration,
}

/// Runs until a signal says stop, and drains.
pub(crate) fn run(arguments: &ServeArgs, output: &mut Output<'_>) -> Result<Exit, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::usage(format!("no runtime can be started: {error}")))?;
    runtime.block_on(async {
        let server = Server::start(arguments, output).await?;
        let deaf = |error: std::io::Error| Failure::usage(format!("signals cannot be listened to: {error}"));
        let mut stopped = std::pin::pin!(reload::stopped().map_err(deaf)?);
        let mut reloading = reload::watch(&server.engine).map_err(deaf)?;
        example::welcome(&server, arguments.rules.is_none(), output);
        loop {
            tokio::select! {
                () = &mut stopped => break,
                told = reloading.told() => output.say(told),
            }
        }
        output.say("stopping: no new connections; open requests may end");
        drop(reloading);
        let clean = server.stop().await;
        if !clean {
            output.warn("some requests did not end in time");
        }
        Ok(Exit::Fine)
    })
}

impl Server {
    /// Opens the store, reads the rules, and listens; port 0 takes a free one.
    pub(crate) async fn start(arguments: &ServeArgs, output: &mut Output<'_>) -> Result<Self, Failure> {
        let engine = Arc::new(Engine::open(arguments, output).await?);
        let (stop, stopping) = watch::channel(false);
        let (http, http_listener) = listen("--http", arguments.http).await?;
        let (admin, admin_listener) = listen("--admin", arguments.admin).await?;
        let (grpc, grpc_listener) = listen("--grpc", arguments.grpc).await?;
        let gateway = match (arguments.gateway, &arguments.upstream) {
            (Some(address), Some(upstream)) => {
                let gateway = Gateway::new(upstream, GatewayOptions::new());
                let gateway = gateway.map_err(|error| Failure::usage(format!("--upstream: {error}")))?;
                Some((listen("--gateway", address).await?, gateway))
            }
            _ => None,
        };
        let mut doors = JoinSet::new();
        let api = api::router(Arc::clone(&engine)).merge(crate::envoy::router(engine.rate_limits()));
        doors.spawn(serve(http_listener, api, stopping.clone()));
        doors.spawn(serve(admin_listener, admin::router(Arc::clone(&engine)), stopping.clone()));
        doors.spawn(grpc::serve(grpc_listener, engine.rate_limits(), stopped(stopping.clone())));
        let gateway = gateway.map(|((address, listener), gateway)| {
            let layer = LimitLayer::of(engine.handle().clone());
            let stopped = stopped(stopping);
            doors.spawn(async move { gateway.serve(listener, layer, stopped).await });
            address
        });
        Ok(Self { http, grpc, admin, gateway, engine, stop, doors, drain: Duration::from_secs(arguments.drain) })
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
        let drained = async { while self.doors.join_next().await.is_some() {} };
        tokio::time::timeout(self.drain, drained).await.is_ok()
    }
}

async fn listen(flag: &str, address: SocketAddr) -> Result<(SocketAddr, TcpListener), Failure> {
    let failed = |error: std::io::Error| Failure::usage(format!("{flag} {address}: {error}; choose another address"));
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    Ok((listener.local_addr().map_err(failed)?, listener))
}

async fn serve(listener: TcpListener, app: axum::Router, stopping: watch::Receiver<bool>) -> std::io::Result<()> {
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).with_graceful_shutdown(stopped(stopping)).await
}

async fn stopped(mut stopping: watch::Receiver<bool>) {
    // An error means that the sender is gone, and with it the server.
    let _ = stopping.wait_for(|stopped| *stopped).await;
}
