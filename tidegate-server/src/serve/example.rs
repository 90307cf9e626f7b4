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
    token_bucket: { capacity: 3, refill: 1/s }
    on_failure: open
";

/// Says where everything is, and how to try it.
pub(crate) fn welcome(server: &Server, example: bool, output: &mut Output<'_>) {
    let (http, admin) = (server.http(), server.admin());
    output.say(format!("check API  http://{http}/v1/check   (described in http://{http}/openapi.json)"));
    output.say(format!("Envoy RLS  {} (gRPC)", server.grpc()));
    if let Some(gateway) = server.gateway() {
        output.say(format!("gateway    http://{gateway}"));
    }
    output.say(format!("health     http://{http}/readyz"));
    output.say(format!("metrics    http://{admin}/metrics"));
    output.say(format!("store      {}", server.engine.store_name()));
    output.say(format!("rules      {}", server.engine.rules_name()));
    if example {
        output.say("\nTry it: three at once, then one a second. The fourth of the last command is refused.\n");
        let ask = format!("curl -s http://{http}/v1/check -d");
        output.say(format!("  {ask} '{{\"path\":\"/hello\",\"ip\":\"203.0.113.9\"}}'"));
        output.say(format!("  {ask} '{{\"path\":\"/other\",\"ip\":\"203.0.113.9\"}}'"));
        output
            .say(format!("  for i in 1 2 3 4; do {ask} '{{\"path\":\"/hello\",\"ip\":\"198.51.100.7\"}}'; echo; done"));
    }
}
