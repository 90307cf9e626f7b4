//! Verifiers of credentials in front of the gateway. A client whose credentials one of them accepts has one bucket, in whatever spelling
//! it accepts them.
//!
//! ```text
//! client ──▶ nginx │ Caddy │ Traefik │ HAProxy │ Envoy, which verifies ──▶ gateway of `tidegate serve` ──▶ a backend that echoes requests
//! ```

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use conformance::poll::wait_for_some;
use conformance::process::{Process, program};
use conformance::serve_process::{ANY_PORT, ServeProcess};
use conformance::server::free_port;
use tempfile::TempDir;

use crate::doors::backend::Service;
use crate::doors::client::request;

/// The identity of the examples for language models.
const RULES: &str = "
version: 1
identify: { client: header:authorization, authenticated: [authorization] }
rules:
  - { id: hourly, per: [client], sliding_log: { limit: 3, window: 1h } }
";

/// `zed:p` and `ann:p` in Base64.
const ZED: &str = "emVkOnA=";
const ANN: &str = "YW5uOnA=";

/// A proxy that verifies credentials.
pub(crate) struct Verifier {
    /// The command that runs it in a directory with its files.
    pub(crate) command: fn(&Path) -> Command,
    /// Its files, with `PROXY` and `GATEWAY` in place of ports.
    pub(crate) files: &'static [(&'static str, &'static str)],
}

/// Credentials that a verifier accepts.
pub(crate) struct Credentials {
    /// Spellings of those of one client, the usual one first.
    pub(crate) spellings: Vec<String>,
    /// How many of these spellings the verifier accepts, at least: more than one bucket has.
    pub(crate) accepted: usize,
    /// Those of another client.
    pub(crate) other: String,
}

impl Credentials {
    /// A user and a password in every letter case of the scheme, with one to three spaces, in each of the four spellings of the Base64;
    /// then spellings that only some verifiers accept.
    pub(crate) fn basic(accepted: usize) -> Self {
        let scheme = |case: u32| -> String {
            let letter = |(index, letter): (usize, char)| {
                if case >> index & 1 == 0 { letter } else { letter.to_ascii_uppercase() }
            };
            "basic".chars().enumerate().map(letter).collect()
        };
        let mut spellings = vec![format!("Basic {ZED}")];
        for space in [" ", "  ", "   "] {
            for encoded in [ZED, "emVkOnB=", "emVkOnC=", "emVkOnD="] {
                spellings.extend((0..32).map(|case| format!("{}{space}{encoded}", scheme(case))));
            }
        }
        // Without padding, with junk after it, with a longer password of which a C string ends early, and other white space.
        for encoded in ["emVkOnA", "emVkOnA==", "emVkOnA=junk", "emVkOnA=j2", "emVkOnAAeA==", "em=VkOnA=", "em\tVkOnA="]
        {
            spellings.push(format!("Basic {encoded}"));
        }
        // nginx ends at the `=`, and Envoy looks for a token behind it.
        spellings.extend((0..5).map(|number| format!("Basic {ZED} Bearer eyJ{number}.e30.x")));
        spellings.extend(["b", "BAS", "Basi"].map(|scheme| format!("{scheme} {ZED}")));
        spellings.push(format!("Basic\t{ZED}"));
        spellings.push(format!("Basic {ZED}\t "));
        Self { spellings, accepted, other: format!("Basic {ANN}") }
    }
}

/// Sends the same credentials in all spellings: only as many requests pass as one client has.
pub(crate) async fn assert_one_bucket(verifier: &Verifier, credentials: &Credentials) {
    let directory = TempDir::new().unwrap();
    let service = Service::start().await;
    let rules = directory.path().join("rules.yaml");
    std::fs::write(&rules, RULES).unwrap();
    let mut command = ServeProcess::command(Path::new(env!("CARGO_BIN_EXE_tidegate-under-test")));
    command.args(["--gateway", ANY_PORT, "--upstream", &format!("http://127.0.0.1:{}", service.port()), "--rules"]);
    let tidegate = ServeProcess::start(command.arg(&rules).current_dir(directory.path()));
    let (proxy, address) = start(verifier, directory.path(), tidegate.gateway().port()).await;
    let send = async |authorization: &str| {
        let response = request("GET /v1").with("authorization", authorization).try_send(address).await;
        response.unwrap_or_else(|| panic!("no response; the output of the proxy: {}", proxy.output())).status
    };
    let usual = &credentials.spellings[0];
    for _ in 0..3 {
        assert_eq!(send(usual).await, 200, "{}", proxy.output());
    }
    let mut accepted = 0;
    for spelling in &credentials.spellings {
        let status = send(spelling).await;
        assert!(matches!(status, 400 | 401 | 429), "{spelling:?} has a bucket of its own: {status}");
        accepted += usize::from(status == 429);
    }
    assert!(
        accepted >= credentials.accepted,
        "only {accepted} of {} spellings are accepted",
        credentials.spellings.len()
    );
    assert_eq!(send(&credentials.other).await, 200, "another client");
}

/// Starts a proxy on a free port, and waits until it refuses a request without credentials.
async fn start(verifier: &Verifier, directory: &Path, gateway: u16) -> (Process, SocketAddr) {
    let mut output = String::new();
    // Another process may take the port first: then the proxy exits, and is started on another port.
    for _ in 0..20 {
        let port = free_port();
        for (name, text) in verifier.files {
            let text = text.replace("PROXY", &port.to_string()).replace("GATEWAY", &gateway.to_string());
            std::fs::write(directory.join(name), text).unwrap();
        }
        let mut proxy = Process::start((verifier.command)(directory).current_dir(directory));
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let is_up = wait_for_some("the proxy refuses a request without credentials", async || {
            if proxy.has_ended() {
                return Some(false);
            }
            let response = request("GET /").try_send(address).await?;
            (response.status == 401).then_some(true)
        })
        .await;
        if is_up {
            return (proxy, address);
        }
        output = proxy.output();
    }
    panic!("the proxy does not start: {output}")
}

const NGINX: Verifier = Verifier {
    command: nginx,
    files: &[
        ("users", "zed:{PLAIN}p\nann:{PLAIN}p\n"),
        (
            "nginx.conf",
            "pid nginx.pid;
             error_log stderr;
             events {}
             http {
                 access_log off;
                 client_body_temp_path body;
                 proxy_temp_path proxy;
                 fastcgi_temp_path fastcgi;
                 uwsgi_temp_path uwsgi;
                 scgi_temp_path scgi;
                 server {
                     listen 127.0.0.1:PROXY;
                     auth_basic zone;
                     auth_basic_user_file users;
                     location / { proxy_pass http://127.0.0.1:GATEWAY; }
                 }
             }",
        ),
    ],
};

fn nginx(directory: &Path) -> Command {
    let mut command = Command::new(program("nginx"));
    command.arg("-p").arg(directory).arg("-c").arg(directory.join("nginx.conf")).args(["-e", "stderr"]);
    command.args(["-g", "daemon off; master_process off;"]);
    command
}

/// A limiter that counts the header as it is gives each of 384 spellings a bucket: behind nginx, 285 of 384 requests of one user passed a
/// limit of 3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_that_nginx_has_verified_has_one_bucket_in_all_spellings() {
    assert_one_bucket(&NGINX, &Credentials::basic(384)).await;
}
