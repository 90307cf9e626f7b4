//! `Upstream`: a real server that reports what it read from each request.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use axum::body::to_bytes;
use axum::extract::{Query, Request};
use axum::http::HeaderMap;
use axum::{Json, Router};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::canonical::judge::ReportFormat;
use conformance::process::{Process, program};
use conformance::server::free_port;
use conformance::suite::serve;

/// A running upstream.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    pub(crate) format: ReportFormat,
    _process: Option<Process>,
    _directory: TempDir,
}

impl Upstream {
    pub(crate) fn nginx() -> Self {
        // Another process may take the port first: then nginx exits, and is started on another port.
        for _ in 0..20 {
            let (directory, port) = (TempDir::new().unwrap(), free_port());
            let config = include_str!("upstreams/nginx.conf").replace(":3000", &format!(":{port}"));
            std::fs::write(directory.path().join("nginx.conf"), config).unwrap();
            let mut command = Command::new(program("nginx"));
            command.arg("-p").arg(directory.path()).args(["-c", "nginx.conf", "-e", "stderr"]);
            command.args(["-g", "daemon off; master_process off;"]);
            let mut process = Process::start(&mut command);
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            if process.wait_until_listening(address).is_ok() {
                return Self { address, format: ReportFormat::Lines, _process: Some(process), _directory: directory };
            }
        }
        panic!("nginx does not start")
    }

    pub(crate) fn flask() -> Self {
        let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/python/bin/python");
        Self::script(python, "flask_app.py", include_str!("upstreams/flask_app.py"))
    }

    pub(crate) fn node() -> Self {
        Self::script(program("node"), "node_app.js", include_str!("upstreams/node_app.js"))
    }

    /// Starts a program that prints its port.
    fn script(program: PathBuf, name: &str, text: &str) -> Self {
        let directory = TempDir::new().unwrap();
        std::fs::write(directory.path().join(name), text).unwrap();
        let mut process = Process::start(Command::new(program).arg(name).current_dir(directory.path()));
        let line = process.wait_for_line("port ").unwrap_or_else(|output| panic!("{name} has ended: {output}"));
        let port: u16 = line["port ".len()..].trim().parse().unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        Self { address, format: ReportFormat::Json, _process: Some(process), _directory: directory }
    }

    pub(crate) async fn axum() -> Self {
        let address = serve(Router::new().fallback(report)).await;
        Self { address, format: ReportFormat::Json, _process: None, _directory: TempDir::new().unwrap() }
    }
}

/// What an axum application reads.
async fn report(request: Request) -> Json<Value> {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, 65_536).await.unwrap();
    let query = Query::<Vec<(String, String)>>::try_from_uri(&parts.uri).map(|query| query.0).unwrap_or_default();
    let accounts: Vec<_> = query.into_iter().filter(|(name, _)| name == "account").map(|(_, value)| value).collect();
    let lines = |name: &str| -> Vec<String> {
        parts
            .headers
            .get_all(name)
            .iter()
            .map(|line| line.as_bytes().iter().map(|byte| char::from(*byte)).collect())
            .collect()
    };
    let paths = [vec![parts.uri.path().to_owned()], lines("x-original-url"), lines("x-rewrite-url")].concat();
    let keys = [lines("x-api-key"), lines("x_api_key")].concat();
    let hosts = [lines("host"), lines("x-forwarded-host")].concat();
    Json(json!({
        "method": parts.method.as_str(),
        "paths": paths,
        "keys": keys,
        "accounts": accounts,
        "sessions": lines("cookie").iter().flat_map(|line| cookies(line, "sid")).collect::<Vec<_>>(),
        "users": [user(&parts.headers)],
        "hosts": hosts,
        "forwarded_for": lines("x-forwarded-for").join(", "),
        "body": String::from_utf8_lossy(&body),
    }))
}

fn cookies(line: &str, wanted: &str) -> Vec<String> {
    let pairs = line.split(';').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(name, _)| name.trim() == wanted).map(|(_, value)| value.trim().to_owned()).collect()
}

/// The subject of a bearer token, as an application reads it that has verified the token elsewhere.
fn user(headers: &HeaderMap) -> Option<String> {
    let authorization = headers.get("authorization")?.to_str().ok()?;
    let mut words = authorization.split_whitespace();
    let (Some(scheme), Some(token), None) = (words.next(), words.next(), words.next()) else { return None };
    let payload = token.split('.').nth(1).filter(|_| scheme.eq_ignore_ascii_case("bearer"))?;
    let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()?;
    claims["sub"].as_str().map(str::to_owned)
}
