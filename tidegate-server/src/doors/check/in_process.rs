//! `CheckApi`: the check API of one instance in this process, without a listener.

use std::convert::Infallible;
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::response::Response;
use clap::{Args, Command, FromArgMatches};
use http::Request;
use http::header::{CONTENT_TYPE, HOST};
use serde_json::Value;
use tidegate::{RuleSet, Timer};
use tidegate_rules::RuleFile;
use tokio::sync::watch;
use tower::ServiceExt;

use crate::args::serve_args::ServeArgs;
use crate::calls::browser_guard::BrowserGuard;
use crate::command::Failure;
use crate::engine::Engine;
use crate::store::{AnyStore, StoreProbe};

/// The largest answer.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// The check API of one instance, on a store and a timer that its owner has made.
///
/// Hidden: it is for the suites that run on every store and front end in virtual time. A server that listens opens its store by a URL and has
/// the time of the system.
#[doc(hidden)]
#[derive(Debug)]
pub struct CheckApi {
    pub(crate) engine: Arc<Engine>,
    router: Router,
    stop: watch::Sender<bool>,
}

impl CheckApi {
    /// Starts it by a command line such as `serve --secret s1`, without rules.
    pub fn start(line: &str, store: AnyStore, timer: Arc<dyn Timer>) -> Result<Self, Failure> {
        let matches = ServeArgs::augment_args(Command::new("serve")).try_get_matches_from(line.split_whitespace());
        let arguments = matches.and_then(|matches| ServeArgs::from_arg_matches(&matches));
        let arguments = arguments.map_err(|error| Failure::usage(error.to_string()))?;
        let file = RuleFile::parse("rules.yaml", "version: 1\nrules: []\n")?;
        let engine = Arc::new(Engine::from_parts(&arguments, file, store, StoreProbe::default(), None, timer)?);
        let (stop, stopping) = watch::channel(false);
        let guard = BrowserGuard::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)));
        let router = super::router(Arc::clone(&engine), guard, stopping);
        Ok(Self { engine, router, stop })
    }

    /// Replaces the rules, as a reload does.
    pub fn set_rules(&self, rules: RuleSet) {
        self.engine.replace_limiter(self.engine.limiter().with_rules(rules));
    }

    /// Answers the callers that wait, as a server does that stops.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Its paths, for a listener of the owner's.
    pub fn router(&self) -> Router {
        self.router.clone()
    }

    /// The status and the body of the answer to a call; null if the body is no JSON.
    pub async fn call(
        &self,
        method: &str,
        path: &str,
        body: &str,
    ) -> Result<(u16, Value), Box<dyn Error + Send + Sync>> {
        let call = Request::builder().method(method).uri(path).header(HOST, "localhost");
        let call = call.header(CONTENT_TYPE, "application/json").body(Body::from(body.to_owned()))?;
        let response: Result<Response, Infallible> = self.router.clone().oneshot(call).await;
        let Ok(response) = response;
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), MAX_ANSWER_BYTES).await?;
        Ok((status, serde_json::from_slice(&body).unwrap_or(Value::Null)))
    }
}
