//! Answers to calls of a path or with a method that an address does not have: 404 and 405, with the call that was probably meant.

use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use http::{Method, StatusCode, Uri};
use serde_json::json;
use tidegate_rules::{sanitize, suggest};

use CallAddress::{Admin, Both, Http};

/// Which address has a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallAddress {
    Http,
    Admin,
    Both,
}

/// Every call over HTTP: its methods, its path, and its address.
const CALLS: [(&str, &str, CallAddress); 29] = [
    ("POST", "/v1/check", Http),
    ("POST", "/v1/check/batch", Http),
    ("POST", "/v1/refund", Http),
    ("POST", "/v1/acquire", Http),
    ("POST", "/v1/leases", Http),
    ("PUT or DELETE", "/v1/leases/ID", Http),
    ("POST", "/v1/quotas/reserve", Http),
    ("POST", "/v1/quotas/commit", Http),
    ("POST", "/v1/quotas/release", Http),
    ("POST", "/v1/quotas/outstanding", Http),
    ("any method", "/v1/forward-auth", Http),
    ("GET", "/openapi.json", Both),
    ("POST", "/json", Http),
    ("GET", "/healthcheck", Http),
    ("GET", "/rlconfig", Both),
    ("GET", "/healthz", Both),
    ("GET", "/readyz", Both),
    ("GET", "/", Admin),
    ("GET", "/metrics", Admin),
    ("GET", "/stats", Admin),
    ("GET", "/v1/status", Admin),
    ("POST", "/v1/subjects/show", Admin),
    ("POST", "/v1/subjects/reset", Admin),
    ("GET or POST", "/v1/usage", Admin),
    ("GET or POST", "/v1/usage/entries", Admin),
    ("POST", "/v1/usage/compare", Admin),
    ("GET or POST", "/v1/usage/reconcile", Admin),
    ("POST", "/v1/usage/corrections", Admin),
    ("POST", "/v1/usage/rollup", Admin),
];

/// Answers calls of the paths of `router` with other methods. Guards that are added later guard these calls, too.
pub(crate) fn answer_wrong_methods<S: Clone + Send + Sync + 'static>(router: Router<S>) -> Router<S> {
    router.method_not_allowed_fallback(async |method: Method, uri: Uri| wrong_method(&method, &uri))
}

/// Answers calls of paths that `router`, that of the check API, does not have.
pub(crate) fn answer_unknown_paths(router: Router) -> Router {
    router.fallback(async |uri: Uri| unknown_path(&uri, Http))
}

/// Answers calls of paths that the list does not have for the admin address, even if `router` has them: a call that is not listed, and so
/// not described, does not exist.
pub(crate) fn answer_unlisted_paths(router: Router) -> Router {
    router.layer(from_fn(async |request: Request, next: Next| {
        if admin_calls().any(|(_, path)| path == request.uri().path()) {
            return next.run(request).await;
        }
        unknown_path(request.uri(), Admin)
    }))
}

/// The methods and the path of every call of the admin address.
pub(crate) fn admin_calls() -> impl Iterator<Item = (&'static str, &'static str)> {
    calls_at(Admin)
}

fn calls_at(here: CallAddress) -> impl Iterator<Item = (&'static str, &'static str)> + Clone {
    CALLS.iter().filter(move |(.., address)| [here, Both].contains(address)).map(|(methods, path, _)| (*methods, *path))
}

fn wrong_method(method: &Method, uri: &Uri) -> Response {
    let methods =
        CALLS.iter().find(|(_, path, _)| is_path(uri.path(), path)).map_or("another method", |(methods, ..)| methods);
    let message = format!("This path is for {methods}, not for {}.", sanitize(method.as_str()));
    problem(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", &message)
}

fn unknown_path(uri: &Uri, here: CallAddress) -> Response {
    let path = uri.path();
    let elsewhere = CALLS.iter().find(|(_, known, address)| is_path(path, known) && *address != here);
    let message = if let Some((_, _, address)) = elsewhere {
        format!("This path is at another address: {}.", address.name())
    } else {
        // If nothing is near, it lists all.
        let meant = Some(suggest(path, calls_at(here).map(|(_, known)| known)));
        let meant = meant.filter(|text| text.starts_with("did you mean ")).map(|text| text + " ").unwrap_or_default();
        format!("There is no such path; {meant}GET /openapi.json describes all.")
    };
    problem(StatusCode::NOT_FOUND, "not_found", &message)
}

/// Whether a path is that of a call. `ID` stands for any segment.
fn is_path(path: &str, known: &str) -> bool {
    match known.strip_suffix("ID") {
        Some(folder) => path.strip_prefix(folder).is_some_and(|id| !id.is_empty() && !id.contains('/')),
        None => path == known,
    }
}

fn problem(status: StatusCode, error: &str, message: &str) -> Response {
    (status, Json(json!({ "error": error, "message": message }))).into_response()
}

impl CallAddress {
    /// The flag of the address, which its operator knows; where it listens is nobody else's business.
    const fn name(self) -> &'static str {
        match self {
            Http | Both => "that of the check API (--http)",
            Admin => "the admin address (--admin)",
        }
    }
}
