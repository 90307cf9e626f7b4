//! The example of a gateway in front of a language model: `examples/llm-gateway`.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::serve::{Running, ask_with};

/// The stand-in for the API of a language model.
pub(crate) struct Upstream {
    child: Child,
    pub(crate) url: String,
}

impl Upstream {
    pub(crate) fn start() -> Self {
        let mut command = Command::new("python3");
        command.arg(example("upstream.py")).arg("0").stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        Self { child, url: url.trim().to_owned() }
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn example(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../examples/llm-gateway").join(file)
}

/// The tokens of the month that a tenant has left.
fn tokens_left(server: &Running, tenant: &str) -> i64 {
    let request = json!({
        "method": "POST", "path": "/v1/chat/completions", "body": "{}", "peek": true,
        "headers": { "authorization": "Bearer unused", "x-tenant-id": tenant },
    });
    let answer = server.check(&request.to_string());
    let checks = answer["checks"].as_array().unwrap();
    let month = checks.iter().find(|check| check["rule"] == "tokens-per-month").unwrap();
    month["remaining"].as_i64().unwrap()
}

#[test]
fn the_example_counts_the_tokens_of_streams_and_answers_of_each_api() {
    let upstream = Upstream::start();
    let rules = example("rules.yaml");
    let gateway = ["--gateway", "127.0.0.1:0", "--upstream", &upstream.url];
    let server = Running::start(&[&["--rules", rules.to_str().unwrap()], &gateway[..]].concat());
    let post = |path: &str, tenant: &str, body: &Value| {
        let headers = [&*format!("x-tenant-id: {tenant}"), "authorization: Bearer k1"];
        ask_with(&server.gateway, "POST", path, &headers, &body.to_string())
    };
    let mut left = tokens_left(&server, "acme");
    // Without spaces, the body is one word.
    for (path, stream) in [
        ("/v1/chat/completions", false),
        ("/v1/chat/completions", true),
        ("/v1/responses", false),
        ("/v1/responses", true),
        ("/v1/messages", false),
        ("/v1/messages", true),
    ] {
        let max = if path == "/v1/responses" { "max_output_tokens" } else { "max_tokens" };
        let (status, body) = post(path, "acme", &json!({ "model": "m", max: 50, "stream": stream }));
        assert_eq!(status, 200, "{body}");
        assert_eq!(body.matches("word ").count(), 50, "{body}");
        assert_eq!(body.contains("prompt_tokens"), !stream && path.contains("chat"), "{body}");
        let used = left - tokens_left(&server, "acme");
        assert_eq!(used, 1 + 50, "{path} {stream}");
        left -= used;
    }
    let (status, body) = post("/v1/chat/completions", "acme", &json!({ "model": "m", "max_tokens": "many" }));
    assert_eq!(status, 400, "{body}");
    assert_eq!(tokens_left(&server, "acme"), left, "a request that fails costs nothing");
}
