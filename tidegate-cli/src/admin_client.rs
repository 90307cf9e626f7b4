//! `AdminArgs` and `AdminClient`: calls of a running server at its admin address. No error repeats a token or a subject.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tidegate_server::command::{Failure, read_token};
use tokio::net::TcpStream;

/// Time for a whole call.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest answer that is read.
const MAX_ANSWER_BYTES: usize = 16 * 1024 * 1024;

/// The port of the admin address, if a URL has none.
const DEFAULT_PORT: u16 = 8082;

/// The running server.
#[derive(Args)]
#[command(next_help_heading = "The server")]
pub(crate) struct AdminArgs {
    /// Admin address of the running server
    #[arg(long, value_name = "URL", env = "TIDEGATE_ADMIN", default_value = "http://127.0.0.1:8082")]
    admin: String,
    /// File with a token of that address; a token for reading is enough to show something
    #[arg(long, value_name = "FILE", env = "TIDEGATE_ADMIN_TOKEN_FILE")]
    admin_token_file: Option<PathBuf>,
    /// The token itself; prefer the file or the environment variable, since other users of the machine can see command lines
    #[arg(long, value_name = "TOKEN", env = "TIDEGATE_ADMIN_TOKEN", hide_env_values = true)]
    admin_token: Option<String>,
}

/// Calls the admin address of one server.
#[derive(Debug)]
pub(crate) struct AdminClient {
    /// Host and port.
    authority: String,
    authorization: Option<HeaderValue>,
}

/// A page of a longer text.
#[derive(Debug)]
pub(crate) struct TextPage {
    pub(crate) text: Bytes,
    /// Where the next page begins. `None` if this is the last one.
    pub(crate) after: Option<String>,
}

/// An answer of the server.
struct Answer {
    status: StatusCode,
    after: Option<String>,
    body: Bytes,
}

/// The header with the place at which the next page begins.
const AFTER_HEADER: &str = "x-tidegate-after";

impl AdminArgs {
    /// The client of the server that the flags name.
    pub(crate) fn client(&self) -> Result<AdminClient, Failure> {
        let token = read_token("--admin-token", self.admin_token_file.as_ref(), self.admin_token.as_deref());
        let token = token.map_err(Failure::Usage)?;
        let authorization = token.map(|token| HeaderValue::try_from(format!("Bearer {token}"))).transpose();
        let mut authorization = authorization.map_err(|_| Failure::usage("--admin-token: this cannot be sent"))?;
        if let Some(value) = &mut authorization {
            value.set_sensitive(true);
        }
        Ok(AdminClient { authority: authority(&self.admin)?, authorization })
    }
}

impl AdminClient {
    /// The answer to `GET path`.
    pub(crate) fn get(&self, path: &str) -> Result<Value, Failure> {
        self.call(Method::GET, path, "application/json", Bytes::new()).map(|answer| answer.json())
    }

    /// The answer to `POST path`.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.call(Method::POST, path, "application/json", body.to_string().into()).map(|answer| answer.json())
    }

    /// The answer to `POST path`, and whether anything was done: a server that has nothing to do says why, with 422.
    pub(crate) fn post_if_needed(&self, path: &str, body: &Value) -> Result<(bool, Value), Failure> {
        let answer = self.exchange(Method::POST, path, "application/json", body.to_string().into())?;
        match answer.status {
            StatusCode::UNPROCESSABLE_ENTITY => Ok((false, answer.json())),
            _ => Self::successful(answer).map(|answer| (true, answer.json())),
        }
    }

    /// A page of the answer to `POST path`, as text of the type `accept`.
    pub(crate) fn post_for_text(&self, path: &str, accept: &'static str, body: &Value) -> Result<TextPage, Failure> {
        let Answer { after, body, .. } = self.call(Method::POST, path, accept, body.to_string().into())?;
        Ok(TextPage { text: body, after })
    }

    fn call(&self, method: Method, path: &str, accept: &'static str, body: Bytes) -> Result<Answer, Failure> {
        Self::successful(self.exchange(method, path, accept, body)?)
    }

    /// The answer with any status.
    fn exchange(&self, method: Method, path: &str, accept: &'static str, body: Bytes) -> Result<Answer, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::usage(format!("cannot start the async runtime: {error}")))?;
        let call = self.send(method, path, accept, body);
        let sent = runtime.block_on(async { tokio::time::timeout(CALL_TIMEOUT, call).await });
        match sent {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(self.unreachable(&error)),
            Err(_) => Err(self.unreachable(&"it does not answer in time")),
        }
    }

    /// The answer if the server did what was asked; else the reason why it did not.
    fn successful(received: Answer) -> Result<Answer, Failure> {
        let status = received.status;
        if status.is_success() {
            return Ok(received);
        }
        let answer = received.json();
        let message = answer["message"].as_str().unwrap_or("this is not the admin address of a Tidegate server");
        Err(match status {
            StatusCode::UNAUTHORIZED => Failure::usage(format!(
                "{message} The server wants a token: set TIDEGATE_ADMIN_TOKEN, or use --admin-token-file"
            )),
            status if status.is_server_error() => Failure::Server(format!("the server answers {status}: {message}")),
            status => Failure::usage(format!("the server answers {status}: {message}")),
        })
    }

    async fn send(&self, method: Method, path: &str, accept: &'static str, body: Bytes) -> Result<Answer, AnyError> {
        let stream = TcpStream::connect(&self.authority).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let connection = tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header(HOST, &self.authority);
        request = request.header(ACCEPT, accept);
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let response = sender.send_request(request.body(Full::new(body))?).await?;
        let status = response.status();
        let after = response.headers().get(AFTER_HEADER).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await?.to_bytes();
        connection.abort();
        Ok(Answer { status, after, body })
    }

    fn unreachable(&self, error: &dyn std::fmt::Display) -> Failure {
        let authority = &self.authority;
        Failure::Server(format!("the server at {authority} cannot be reached: {error}. Its admin address is --admin"))
    }
}

impl Answer {
    /// The body; null if it is not JSON.
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// Host and port of `http://HOST:PORT` or `HOST:PORT`; of this machine for `PORT` and `:PORT`, which `--admin` of a server takes.
fn authority(url: &str) -> Result<String, Failure> {
    let port = url.strip_prefix(':').unwrap_or(url).parse::<u16>();
    if let Ok(port) = port {
        return Ok(format!("127.0.0.1:{port}"));
    }
    let refused = |why: &str| Failure::usage(format!("--admin: {why}; write a URL such as http://127.0.0.1:8082"));
    if url == "off" {
        // The variable and the config file are also those of the server.
        return Err(refused("the admin address is off, and this command calls a server there"));
    }
    let uri: Uri = url.trim_end_matches('/').parse().map_err(|_| refused("this is not a URL"))?;
    if uri.scheme_str() == Some("https") {
        return Err(refused("the admin address has no TLS"));
    }
    if uri.scheme_str().is_some_and(|scheme| scheme != "http") || uri.path().len() > 1 || uri.query().is_some() {
        return Err(refused("this is not the address of a server"));
    }
    let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'));
    let authority = authority.ok_or_else(|| refused("this is not the address of a server"))?;
    let port = authority.port_u16().unwrap_or(DEFAULT_PORT);
    Ok(format!("{}:{port}", authority.host()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_url_or_a_host_with_a_port() {
        for (url, expected) in [
            ("http://127.0.0.1:8082", "127.0.0.1:8082"),
            ("http://127.0.0.1:8082/", "127.0.0.1:8082"),
            ("8083", "127.0.0.1:8083"),
            (":8083", "127.0.0.1:8083"),
            ("localhost:8083", "localhost:8083"),
            ("127.0.0.1:9", "127.0.0.1:9"),
            ("[::1]:9", "[::1]:9"),
            ("http://tidegate", "tidegate:8082"),
            ("0.0.0.0:8082", "0.0.0.0:8082"),
        ] {
            assert_eq!(authority(url).ok().as_deref(), Some(expected), "{url}");
        }
        for url in ["off", "https://h:1", "ftp://h", "http://h/path", "http://u:hunter2@h", "", "/x", "http://h?q"] {
            let Err(Failure::Usage(message)) = authority(url) else { panic!("{url} is accepted") };
            assert!(message.contains("http://127.0.0.1:8082") && !message.contains("hunter2"), "{message}");
        }
    }
}
