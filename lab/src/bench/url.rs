//! `tidegate-lab bench --url`: load for any HTTP address. It starts no server, and any status counts as a response.

use bytes::Bytes;
use http::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Uri};
use serde_json::json;
use tidegate::attributes;
use tidegate_server::command::{Exit, Failure, Output};

use super::latency::Latencies;
use super::options::UrlArgs;
use super::request_template::RequestTemplate;
use super::{Bench, load};

/// Runs the load, and prints statuses and latencies.
pub(super) async fn run(bench: &Bench<'_>, url: &Uri, output: &mut Output<'_>) -> Result<Exit, Failure> {
    let arguments = bench.arguments;
    let template = template(&arguments.url_load, url)?;
    // The URL is not repeated: it may contain a key.
    let opened = template.connect(arguments.connections).await;
    let connections = opened.map_err(|error| Failure::usage(format!("--url: {error}")))?;
    let latencies =
        load::open_loop(connections, &template, arguments.rate, arguments.seconds, bench.timer.as_ref()).await;
    let latencies = latencies.map_err(Failure::usage)?;
    if arguments.json {
        output.json(
            &json!({ "rate": arguments.rate, "seconds": arguments.seconds.as_secs_f64(), "latency": latencies.json() }),
        );
    } else {
        print_latencies(&latencies, output);
    }
    for warning in latencies.warnings() {
        output.warn(warning);
    }
    Ok(Exit::from_success(latencies.unanswered == 0))
}

fn print_latencies(latencies: &Latencies, output: &mut Output<'_>) {
    if let Some(sent) = latencies.sent_per_second() {
        output.line(format_args!("sent a second  {sent}"));
    }
    for (status, count) in &latencies.statuses {
        output.line(format_args!("status {status}     {count}"));
    }
    if latencies.unanswered > 0 {
        output.line(format_args!("no response    {}", latencies.unanswered));
    }
    let names = ["p50 µs", "p90 µs", "p99 µs", "p99.9 µs", "max µs"];
    for (name, micros) in names.into_iter().zip(latencies.micros()) {
        output.line(format_args!("{name:13}  {micros}"));
    }
}

fn template(arguments: &UrlArgs, url: &Uri) -> Result<RequestTemplate, Failure> {
    if url.scheme_str() != Some("http") {
        return Err(Failure::usage("--url: only http:// URLs are supported, not TLS"));
    }
    let authority = url.authority().ok_or_else(|| Failure::usage("--url: the URL has no host"))?;
    let target = url.path_and_query().map_or("/", |target| target.as_str());
    let target = target.parse().map_err(|_| Failure::usage("--url: the URL has no valid path"))?;
    let mut headers = HeaderMap::new();
    let host = attributes::host_in_authority(authority.as_str());
    headers.extend(HeaderValue::from_str(host).ok().map(|host| (HOST, host)));
    for (index, text) in arguments.header.iter().enumerate() {
        let (name, value) = parse_header(text).ok_or_else(|| {
            Failure::usage(format!("--header: write 'name: value'; number {} is different", index + 1))
        })?;
        if name == HOST {
            headers.insert(name, value);
        } else {
            headers.append(name, value);
        }
    }
    let body = Bytes::from(arguments.data.clone().unwrap_or_default());
    let default_method = if arguments.data.is_some() { Method::POST } else { Method::GET };
    let method = arguments.method.clone().unwrap_or(default_method);
    let port = authority.port_u16().unwrap_or(80);
    Ok(RequestTemplate::any(format!("{}:{port}", authority.host()), target, method, headers, body))
}

fn parse_header(text: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = text.split_once(':')?;
    Some((name.trim().parse().ok()?, value.trim().parse().ok()?))
}
