//! Load for any address: what its answers were and how long they took. It starts nothing, and judges no status.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Uri};
use serde_json::json;
use tidegate::Timer;

use super::ask::Ask;
use super::latency::Latencies;
use super::load;
use super::options::{BenchArgs, UrlArgs};
use crate::traffic::{Line, Protocol};
use tidegate_server::command::{Exit, Failure, Output};

/// Runs the load, and says what came back.
pub(crate) async fn run(
    arguments: &BenchArgs,
    url: &Uri,
    timer: &Arc<impl Timer + 'static>,
    output: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let ask = Arc::new(ask(&arguments.to, url)?);
    let opened = Line::open(Protocol::Http1, &ask.authority, arguments.connections).await;
    // The address is not repeated: there may be a key in it.
    let lines = opened.map_err(|error| Failure::usage(format!("--url: {error}")))?;
    let found = load::on_time(lines, &ask, arguments.rate, arguments.seconds, timer).await.map_err(Failure::usage)?;
    if arguments.json {
        output.json(
            &json!({ "rate": arguments.rate, "seconds": arguments.seconds.as_secs_f64(), "latency": found.json() }),
        );
    } else {
        print(&found, output);
    }
    for doubt in found.doubts() {
        output.warn(doubt);
    }
    Ok(Exit::from_success(found.unanswered() == 0))
}

fn print(found: &Latencies, output: &mut Output<'_>) {
    if let Some(sent) = found.sent_per_second() {
        output.line(format_args!("sent a second  {sent}"));
    }
    for (status, count) in found.statuses() {
        output.line(format_args!("status {status}     {count}"));
    }
    if found.unanswered() > 0 {
        output.line(format_args!("no answer      {}", found.unanswered()));
    }
    let names = ["p50 µs", "p90 µs", "p99 µs", "p99.9 µs", "max µs"];
    for (name, micros) in names.into_iter().zip(found.micros()) {
        output.line(format_args!("{name:13}  {micros}"));
    }
}

fn ask(arguments: &UrlArgs, url: &Uri) -> Result<Ask, Failure> {
    if url.scheme_str() != Some("http") {
        return Err(Failure::usage("--url: write a URL that begins with http://; TLS cannot be spoken here"));
    }
    let authority = url.authority().ok_or_else(|| Failure::usage("--url: this URL has no host"))?;
    let target = url.path_and_query().map_or("/", |target| target.as_str());
    let target = target.parse().map_err(|_| Failure::usage("--url: this URL has no path that can be asked for"))?;
    let mut headers = HeaderMap::new();
    let host = authority.as_str().rsplit('@').next().unwrap_or_default();
    headers.extend(HeaderValue::from_str(host).ok().map(|host| (HOST, host)));
    for (place, written) in arguments.header.iter().enumerate() {
        let (name, value) = header(written).ok_or_else(|| {
            Failure::usage(format!("--header: a header is written 'name: value'; number {} is not", place + 1))
        })?;
        if name == HOST {
            headers.insert(name, value);
        } else {
            headers.append(name, value);
        }
    }
    let body = Bytes::from(arguments.data.clone().unwrap_or_default());
    let usual = if arguments.data.is_some() { Method::POST } else { Method::GET };
    let method = arguments.method.clone().unwrap_or(usual);
    let port = authority.port_u16().unwrap_or(80);
    Ok(Ask::any(format!("{}:{port}", authority.host()), target, method, headers, body))
}

fn header(written: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = written.split_once(':')?;
    Some((name.trim().parse().ok()?, value.trim().parse().ok()?))
}
