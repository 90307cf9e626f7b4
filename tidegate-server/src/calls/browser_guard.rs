//! `BrowserGuard`: refuses calls of web pages, which reach an address of the server through the browser of somebody on the same machine
//! or network.
//!
//! - A page sends its own address in `Origin`. It must be the address that the call is sent to.
//! - A page whose name was changed to the server's address (DNS rebinding) sends its own name in `Host`, too. So a call to a loopback
//!   address must name a loopback host. On other addresses a server may have any name; there a token is what protects it.

use std::net::{IpAddr, SocketAddr};

use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use http::header::{HOST, ORIGIN};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, Uri};
use serde_json::json;
use tidegate::attributes::normalize_host;

/// Refuses calls of web pages to one address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BrowserGuard {
    is_loopback: bool,
}

/// What is wrong with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BrowserCall {
    ForeignHost,
    ForeignOrigin,
}

impl BrowserGuard {
    /// A guard of calls to `address`.
    pub(crate) const fn new(address: SocketAddr) -> Self {
        Self { is_loopback: address.ip().is_loopback() }
    }

    /// Guards every call of `router`.
    pub(crate) fn guard(self, router: Router) -> Router {
        router.layer(from_fn(move |request: Request, next: Next| self.check(request, next)))
    }

    /// Guards the calls that may change something: all but `GET` and `HEAD`.
    pub(crate) fn guard_changes(self, router: Router) -> Router {
        router.layer(from_fn(move |request: Request, next: Next| async move {
            if [Method::GET, Method::HEAD].contains(request.method()) {
                return next.run(request).await;
            }
            self.check(request, next).await
        }))
    }

    async fn check(self, request: Request, next: Next) -> Response {
        let (parts, body) = request.into_parts();
        match self.problem(&parts) {
            None => next.run(Request::from_parts(parts, body)).await,
            Some(problem) => problem.into_response(),
        }
    }

    fn problem(self, parts: &Parts) -> Option<BrowserCall> {
        let hosts = || hosts(parts);
        if self.is_loopback && !hosts().all(|host| host.is_some_and(is_loopback_host)) {
            return Some(BrowserCall::ForeignHost);
        }
        let is_own = |origin: &HeaderValue| {
            let authority = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok()?.into_parts().authority);
            authority
                .is_some_and(|own| hosts().any(|host| host.is_some_and(|host| own.as_str().eq_ignore_ascii_case(host))))
        };
        (!parts.headers.get_all(ORIGIN).iter().all(is_own)).then_some(BrowserCall::ForeignOrigin)
    }
}

/// The hosts that a request names, `None` for one that is not text. A request of HTTP/1.0 may name none; no browser sends it.
fn hosts(parts: &Parts) -> impl Iterator<Item = Option<&str>> {
    let target = parts.uri.authority().map(|authority| Some(authority.as_str()));
    target.into_iter().chain(parts.headers.get_all(HOST).iter().map(|host| host.to_str().ok()))
}

fn is_loopback_host(host: &str) -> bool {
    let host = normalize_host(host);
    let address = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(&host);
    host == "localhost" || address.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

impl IntoResponse for BrowserCall {
    fn into_response(self) -> Response {
        let (error, message) = match self {
            Self::ForeignHost => (
                "foreign_host",
                "This address listens on loopback, so the Host must be localhost or a loopback address. To use another name, \
                 listen on another address.",
            ),
            Self::ForeignOrigin => ("foreign_origin", "Web pages of other origins may not call this address."),
        };
        (StatusCode::FORBIDDEN, Json(json!({ "error": error, "message": message }))).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(address: &str, target: &str, headers: &[(&'static str, &str)]) -> Option<BrowserCall> {
        let request =
            headers.iter().fold(http::Request::post(target), |request, (name, value)| request.header(*name, *value));
        let (parts, ()) = request.body(()).unwrap().into_parts();
        BrowserGuard::new(address.parse().unwrap()).problem(&parts)
    }

    #[test]
    fn on_loopback_a_call_must_name_a_loopback_host() {
        for host in [
            "127.0.0.1:8080",
            "localhost",
            "LOCALHOST:80",
            "localhost.",
            "127.9.9.9",
            "[::1]:8080",
            "[::ffff:127.0.0.1]",
        ] {
            assert_eq!(problem("127.0.0.1:8080", "/", &[("host", host)]), None, "{host}");
            assert_eq!(problem("[::1]:8080", &format!("http://{host}/"), &[]), None, "{host}, HTTP/2");
        }
        for host in
            ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", ""]
        {
            assert_eq!(problem("127.0.0.1:8080", "/", &[("host", host)]), Some(BrowserCall::ForeignHost), "{host:?}");
            assert_eq!(problem("0.0.0.0:8080", "/", &[("host", host)]), None, "{host:?}: a server may have any name");
        }
        let both = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(problem("127.0.0.1:8080", "/", &both), Some(BrowserCall::ForeignHost));
        let target = problem("127.0.0.1:8080", "http://evil.example/", &[("host", "localhost")]);
        assert_eq!(target, Some(BrowserCall::ForeignHost));
        assert_eq!(problem("127.0.0.1:8080", "/", &[]), None, "HTTP/1.0");
    }

    #[test]
    fn a_page_of_another_origin_may_not_call() {
        let host = ("host", "127.0.0.1:8082");
        for address in ["127.0.0.1:8082", "0.0.0.0:8082"] {
            assert_eq!(problem(address, "/", &[host, ("origin", "http://127.0.0.1:8082")]), None);
            for origin in [
                "https://evil.example",
                "null",
                "",
                "http://127.0.0.1:9999",
                "http://localhost:8082",
                "127.0.0.1:8082/x",
            ] {
                let found = problem(address, "/", &[host, ("origin", origin)]);
                assert_eq!(found, Some(BrowserCall::ForeignOrigin), "{origin:?}");
            }
            let two = [host, ("origin", "http://127.0.0.1:8082"), ("origin", "https://evil.example")];
            assert_eq!(problem(address, "/", &two), Some(BrowserCall::ForeignOrigin));
        }
        assert_eq!(
            problem("0.0.0.0:8082", "/", &[("origin", "https://evil.example")]),
            Some(BrowserCall::ForeignOrigin)
        );
    }
}
