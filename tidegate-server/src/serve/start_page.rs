//! The page that a server prints on stdout when it starts: its addresses, and an example to try where there is no rule file.

use super::Server;
use crate::output::Output;

/// The rules of a server without a rule file.
pub(crate) const EXAMPLE_RULES: &str = "\
version: 1
rules:
  - id: hello
    match: { path: /hello }
    per: [client]
    token_bucket: { capacity: 3, refill: 6/m }
";

/// Prints the addresses of the server, and commands to try.
pub(crate) fn print(server: &Server, output: &mut Output<'_>) {
    let engine = &server.engine;
    let scheme = if engine.tls().is_some() { "https" } else { "http" };
    let (http, admin) = (format!("{scheme}://{}", server.http()), server.admin());
    output.line(format!("check API     {http}/v1/check   (described in {http}/openapi.json)"));
    output.line(format!("forward-auth  {http}/v1/forward-auth"));
    output.line(format!("Envoy RLS     {} (gRPC)", server.grpc()));
    if let Some(gateway) = server.gateway() {
        output.line(format!("gateway       {scheme}://{gateway}"));
    }
    output.line(format!("health        {http}/readyz"));
    output.line(format!("metrics       http://{admin}/metrics"));
    output.line(format!("admin         http://{admin}   (tidegate status, tidegate subject, tidegate quota)"));
    output.line(format!("store         {}", engine.store_name()));
    if let Some(ledger) = engine.ledger() {
        output.line(format!("ledger        {}", ledger.url()));
    }
    if let Some(folder) = engine.envoy().folder() {
        output.line(format!("for Envoy     {}", folder.display()));
    }
    output.line(format!("rules         {}", engine.rules_name()));
    if engine.path().is_none() && engine.envoy().folder().is_none() {
        // The certificate of a first try is often self-signed.
        let curl = if engine.tls().is_some() { "curl -k" } else { "curl" };
        let hello = r#"{"path":"/hello","ip":"203.0.113.9"}"#;
        let expensive = r#"{"path":"/hello","ip":"203.0.113.9","cost":3}"#;
        output.line("\nTry it in another terminal. The example lets each address say hello three times at once, then once in ten seconds:\n");
        let check = format!("{curl} -s {http}/v1/check -H 'content-type: application/json'");
        output.line(format!("  {check} -d '{hello}'"));
        output.line(format!("  {check} -d '{expensive}'   # costs more than is left"));
        output.line(format!(
            "  for i in 1 2 3 4; do {curl} -si -H 'X-Forwarded-Uri: /hello' {http}/v1/forward-auth; done   # the last is a 429"
        ));
    }
}
