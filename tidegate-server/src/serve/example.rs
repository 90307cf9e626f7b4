//! The example that a server without a rule file limits by, and what it says when it starts.

use super::Server;
use crate::output::Output;

/// The rules of a server that was given none.
pub(crate) const RULES: &str = "\
version: 1
rules:
  - id: hello
    match: { path: /hello }
    per: [client]
    token_bucket: { capacity: 3, refill: 6/m }
    on_failure: open
";

/// Says where everything is, and how to try it.
pub(crate) fn welcome(server: &Server, output: &mut Output<'_>) {
    let engine = &server.engine;
    let scheme = if engine.tls().is_some() { "https" } else { "http" };
    let (http, admin) = (format!("{scheme}://{}", server.http()), server.admin());
    output.info(format!("check API     {http}/v1/check   (described in {http}/openapi.json)"));
    output.info(format!("forward-auth  {http}/v1/forward-auth"));
    output.info(format!("Envoy RLS     {} (gRPC)", server.grpc()));
    if let Some(gateway) = server.gateway() {
        output.info(format!("gateway       {scheme}://{gateway}"));
    }
    output.info(format!("health        {http}/readyz"));
    output.info(format!("metrics       http://{admin}/metrics"));
    output.info(format!("store         {}", engine.store_name()));
    if let Some(folder) = engine.envoy().folder() {
        output.info(format!("for Envoy     {}", folder.display()));
    }
    output.info(format!("rules         {}", engine.rules_name()));
    if engine.path().is_none() && engine.envoy().folder().is_none() {
        // Whoever tries it out may not have an authority for the certificate.
        let curl = if engine.tls().is_some() { "curl -k" } else { "curl" };
        let hello = r#"{"path":"/hello","ip":"203.0.113.9"}"#;
        let dear = r#"{"path":"/hello","ip":"203.0.113.9","cost":3}"#;
        output.info("\nTry it in another terminal. The example lets each client say hello three times at once, then once in ten seconds:\n");
        output.info(format!("  {curl} -s {http}/v1/check -d '{hello}'"));
        output.info(format!("  {curl} -s {http}/v1/check -d '{dear}'   # costs more than is left"));
        output.info(format!(
            "  for i in 1 2 3 4; do {curl} -si -H 'X-Forwarded-Uri: /hello' {http}/v1/forward-auth; done   # the last is a 429"
        ));
    }
}
