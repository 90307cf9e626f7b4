//! The verifiers beside nginx.

use std::path::Path;
use std::process::Command;

use conformance::process::program;

use crate::doors::verifiers::{Credentials, Verifier, assert_one_bucket};

/// Tokens of two clients, signed with HS256.
const ZED: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJpc3MiOiJ0ZXN0cyIsInN1YiI6InplZCJ9.RRi92-UXmyuuKPwsgq3e7gRLRvIvAC4soEkVSCdL2sg";
const ANN: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJpc3MiOiJ0ZXN0cyIsInN1YiI6ImFubiJ9.kA3tGMp5iJRjNcfNSRW9C9fONWMzx3ZREHJNDy8cv14";

/// The last letter of the signature with other bits that are left over.
const SPARE_BITS: [char; 3] = ['h', 'i', 'j'];

/// A token in spellings that some verifier accepts.
fn bearer(accepted: usize) -> Credentials {
    let mut spellings = vec![format!("Bearer {ZED}")];
    for scheme in
        ["Bearer ", "bearer ", "BEARER ", "bEaReR ", "Bearer  ", "Bearer   ", "Bearer\t", "Bearer \t", "Be ", "beare "]
    {
        spellings.push(format!("{scheme}{ZED}"));
        spellings.push(format!("{scheme}{ZED}="));
        spellings.push(format!("{scheme}{ZED}, junk"));
        let signed = &ZED[..ZED.len() - 1];
        spellings.extend(SPARE_BITS.map(|last| format!("{scheme}{signed}{last}")));
    }
    for number in 0..10 {
        spellings.push(format!("{number} Bearer {ZED}"));
        spellings.push(format!("Bearer {ZED}~{number}"));
        spellings.push(format!("Bearer \"{ZED}\" {number}"));
        spellings.push(format!("bearer e30.{number}.x Bearer {ZED}"));
    }
    spellings.extend(["emVkOnA=", "YW5uOnA="].map(|user| format!("Basic {user} Bearer {ZED}")));
    spellings.push(ZED.to_owned());
    Credentials { spellings, accepted, other: format!("Bearer {ANN}") }
}

const CADDY: Verifier = Verifier {
    command: |directory| {
        let mut command = Command::new(program("caddy"));
        command.args(["run", "--config", "Caddyfile"]).env("HOME", directory);
        command.env("CADDY_ADMIN", format!("unix/{}", directory.join("admin").display()));
        command
    },
    files: &[(
        "Caddyfile",
        "http://:PROXY {
            bind 127.0.0.1
            basic_auth {
                zed $2b$04$abcdefghijklmnopqrstuudMegMbPN37MbpdEfAtP66w1z0RBCtLG
                ann $2b$04$abcdefghijklmnopqrstuudMegMbPN37MbpdEfAtP66w1z0RBCtLG
            }
            reverse_proxy 127.0.0.1:GATEWAY
        }",
    )],
};

const TRAEFIK: Verifier = Verifier {
    command: |_| {
        let mut command = Command::new(program("traefik"));
        command.arg("--configFile=traefik.yaml");
        command
    },
    files: &[
        (
            "traefik.yaml",
            "entryPoints: { web: { address: '127.0.0.1:PROXY' } }
providers: { file: { filename: dynamic.yaml } }
log: { level: ERROR }
global: { checkNewVersion: false, sendAnonymousUsage: false }
",
        ),
        (
            "dynamic.yaml",
            "http:
  routers: { all: { rule: 'PathPrefix(`/`)', entryPoints: [web], middlewares: [users], service: gateway } }
  middlewares: { users: { basicAuth: { users: ['zed:{SHA}UWuXg/ylF+7L0dBk2i0WUxCxl1k=', 'ann:{SHA}UWuXg/ylF+7L0dBk2i0WUxCxl1k='] } } }
  services: { gateway: { loadBalancer: { servers: [{ url: 'http://127.0.0.1:GATEWAY' }] } } }
",
        ),
    ],
};

fn haproxy(_: &Path) -> Command {
    let mut command = Command::new(program("haproxy"));
    command.args(["-f", "haproxy.cfg", "-db"]);
    command
}

const HAPROXY: Verifier = Verifier {
    command: haproxy,
    files: &[(
        "haproxy.cfg",
        "defaults
    mode http
    timeout connect 1s
    timeout client 30s
    timeout server 30s
userlist users
    user zed insecure-password p
    user ann insecure-password p
frontend door
    bind 127.0.0.1:PROXY
    http-request auth unless { http_auth(users) }
    default_backend gateway
backend gateway
    server gateway 127.0.0.1:GATEWAY
",
    )],
};

const HAPROXY_TOKENS: Verifier = Verifier {
    command: haproxy,
    files: &[(
        "haproxy.cfg",
        "defaults
    mode http
    timeout connect 1s
    timeout client 30s
    timeout server 30s
frontend door
    bind 127.0.0.1:PROXY
    http-request set-var(txn.bearer) http_auth_bearer
    http-request deny deny_status 401 unless { var(txn.bearer),jwt_verify(HS256,thirty-two-bytes-for-these-tests) -m int 1 }
    default_backend gateway
backend gateway
    server gateway 127.0.0.1:GATEWAY
",
    )],
};

const ENVOY: Verifier = Verifier {
    command: |directory| {
        let mut command = Command::new(program("envoy"));
        // Hot restart would connect the Envoys of parallel tests.
        command.arg("-c").arg(directory.join("envoy.yaml"));
        command.args(["--disable-hot-restart", "--concurrency", "1", "-l", "error"]);
        command
    },
    files: &[(
        "envoy.yaml",
        r#"static_resources:
  listeners:
    - name: door
      address: { socket_address: { address: 127.0.0.1, port_value: PROXY } }
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: door
                route_config:
                  virtual_hosts:
                    - { name: gateway, domains: ["*"], routes: [{ match: { prefix: / }, route: { cluster: gateway } }] }
                http_filters:
                  - name: envoy.filters.http.jwt_authn
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication
                      providers:
                        tests:
                          issuer: tests
                          forward: true
                          local_jwks:
                            inline_string: '{"keys":[{"kty":"oct","alg":"HS256","k":"dGhpcnR5LXR3by1ieXRlcy1mb3ItdGhlc2UtdGVzdHM"}]}'
                      rules: [{ match: { prefix: / }, requires: { provider_name: tests } }]
                  - name: envoy.filters.http.router
                    typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }
  clusters:
    - name: gateway
      connect_timeout: 1s
      load_assignment:
        cluster_name: gateway
        endpoints:
          - lb_endpoints:
              - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: GATEWAY } } }
"#,
    )],
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_that_caddy_has_verified_has_one_bucket_in_all_spellings() {
    assert_one_bucket(&CADDY, &Credentials::basic(128)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_that_traefik_has_verified_has_one_bucket_in_all_spellings() {
    assert_one_bucket(&TRAEFIK, &Credentials::basic(5)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_that_haproxy_has_verified_has_one_bucket_in_all_spellings() {
    assert_one_bucket(&HAPROXY, &Credentials::basic(384)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_haproxy_has_verified_has_one_bucket_in_all_spellings() {
    assert_one_bucket(&HAPROXY_TOKENS, &bearer(7)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_envoy_has_verified_has_one_bucket_in_all_spellings() {
    assert_one_bucket(&ENVOY, &bearer(40)).await;
}
