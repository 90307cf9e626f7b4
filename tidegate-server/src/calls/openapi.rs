//! `/openapi.json`: the `OpenAPI` 3.1 descriptions of the check API and of the admin address. Reading one needs no token, since it contains
//! nothing of this server.

use axum::Router;
use axum::routing::get;
use http::header::CONTENT_TYPE;

/// The description of the check API.
pub(crate) const CHECK_API: &str = include_str!("../doors/check/openapi.json");

/// The description of the admin address.
pub(crate) const ADMIN: &str = include_str!("../admin/openapi.json");

/// Serves a description.
pub(crate) fn router<S: Clone + Send + Sync + 'static>(description: &'static str) -> Router<S> {
    Router::new().route("/openapi.json", get(async move || ([(CONTENT_TYPE, "application/json")], description)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use axum::body::Body;
    use serde_json::{Map, Value};
    use tower::ServiceExt;

    use super::*;
    use crate::calls::unknown_calls::{admin_calls, answer_unlisted_paths};

    fn parse(description: &str) -> Value {
        serde_json::from_str(description).unwrap()
    }

    fn schemas(description: &Value) -> &Map<String, Value> {
        description["components"]["schemas"].as_object().unwrap()
    }

    #[test]
    fn every_call_of_the_admin_address_is_described_and_every_described_call_exists() {
        let mut described = BTreeSet::new();
        for (path, methods) in parse(ADMIN)["paths"].as_object().unwrap() {
            let methods: Vec<String> =
                methods.as_object().unwrap().keys().map(|method| method.to_uppercase()).collect();
            described.insert((path.clone(), methods.join(" or ")));
        }
        let calls = admin_calls().map(|(methods, path)| (path.to_owned(), methods.to_owned()));
        assert_eq!(described, calls.collect());
    }

    #[tokio::test]
    async fn a_call_that_is_not_listed_does_not_exist() {
        let router = Router::new().route("/v1/secret", get(async || "")).route("/metrics", get(async || ""));
        let router = answer_unlisted_paths(router);
        for (path, status) in [("/metrics", 200), ("/v1/secret", 404), ("/v1/check", 404)] {
            let request = http::Request::get(path).body(Body::empty()).unwrap();
            assert_eq!(router.clone().oneshot(request).await.unwrap().status(), status, "{path}");
        }
    }

    #[test]
    fn both_descriptions_have_the_same_schemas_under_the_same_names() {
        let (check_api, admin) = (parse(CHECK_API), parse(ADMIN));
        let (check_api, admin) = (schemas(&check_api), schemas(&admin));
        let shared: Vec<&str> = admin.keys().map(String::as_str).filter(|name| check_api.contains_key(*name)).collect();
        assert_eq!(shared, ["Answer", "CheckResult", "Error"]);
        for name in shared {
            assert_eq!(check_api[name], admin[name], "{name}");
        }
        // A request that describes a subject has the fields of a check that say something about the request.
        let mut fields = check_api["Check"]["properties"].as_object().unwrap().clone();
        fields.retain(|name, _| !["peek", "receipt", "strict"].contains(&name.as_str()));
        assert_eq!(admin["SubjectRequest"]["properties"], Value::Object(fields));
        assert_eq!(admin["SubjectRequest"]["not"], check_api["Check"]["not"]);
    }
}
