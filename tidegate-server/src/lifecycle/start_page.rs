//! The page that a server prints on stdout when it starts: its addresses, and an example to try where there is no rule file.

use tidegate::spi::Namespace;

use crate::command::output::Output;
use crate::serve::Server;

/// The rules of a server without a rule file.
pub(crate) const EXAMPLE_RULES: &str = "\
version: 1
rules:
  - id: hello
    match: { path: /hello }
    per: [client]
    token_bucket: { capacity: 3, refill: 6/m }
";

/// Prints the addresses of the server that are not off, and commands to try.
pub(crate) fn print(server: &Server, output: &mut Output<'_>) {
    let engine = &server.engine;
    let scheme = if engine.has_tls() { "https" } else { "http" };
    let http = server.http().map(|address| format!("{scheme}://{address}"));
    let admin = server.admin().map(|address| format!("http://{address}"));
    if let Some(http) = &http {
        output.line(format!("check API     {http}/v1/check   (described in {http}/openapi.json)"));
        output.line(format!("forward-auth  {http}/v1/forward-auth"));
    }
    if let Some(grpc) = server.grpc() {
        output.line(format!("Envoy RLS     {grpc} (gRPC)"));
    }
    if let Some(gateway) = server.gateway() {
        output.line(format!("gateway       {scheme}://{gateway}"));
    }
    if let Some(address) = http.as_ref().or(admin.as_ref()) {
        output.line(format!("health        {address}/readyz"));
    } else if let Some(grpc) = server.grpc() {
        output.line(format!("health        {grpc} (gRPC)"));
    }
    if let Some(admin) = &admin {
        output.line(format!("metrics       {admin}/metrics"));
        output.line(format!("admin         {admin}   (tidegate status, tidegate subject, tidegate quota)"));
    }
    let namespace = match engine.namespace().as_str() {
        Namespace::DEFAULT => String::new(),
        name => format!(", namespace {name}"),
    };
    output.line(format!("store         {}{namespace}", engine.store_name()));
    if let Some(ledger) = engine.ledger() {
        output.line(format!("ledger        {}", ledger.url()));
    }
    if let Some(folder) = engine.envoy().folder() {
        output.line(format!("for Envoy     {}", folder.display()));
    }
    output.line(format!("rules         {}", engine.rules_name()));
    let is_example = engine.path().is_none() && engine.envoy().folder().is_none();
    if let Some(http) = http.filter(|_| is_example) {
        // The certificate of a first try is often self-signed.
        print_example(&http, if engine.has_tls() { "curl -k" } else { "curl" }, output);
    }
}

/// Prints commands that try the [example](EXAMPLE_RULES).
fn print_example(http: &str, curl: &str, output: &mut Output<'_>) {
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
