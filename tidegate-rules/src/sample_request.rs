//! `SampleRequest`: a request in a test or on a command line, and the attributes that a front end would give it. It does not
//! know the rules, so it has attributes that no rule reads, too.

use std::borrow::Cow;
use std::collections::HashMap;
use std::error::Error;
use std::fmt;

use smol_str::SmolStr;
use tidegate::{Request, attributes};

use crate::ip;

/// The attribute of the `Transfer-Encoding` header: the length of such a body is not known.
const TRANSFER_ENCODING_HEADER: &str = "header:transfer-encoding";

/// A request in a test or on a command line.
///
/// ```
/// use tidegate_rules::SampleRequest;
///
/// let sample = SampleRequest::new().with_method("GET").with_path("/search?q=tide").with_header("X-Api-Key", "k1");
/// let attributes = sample.attributes()?;
/// let request = attributes.request();
/// assert_eq!((request.attribute("path"), request.attribute("query")), (Some("/search"), Some("q=tide")));
/// assert_eq!(request.attribute("header:x-api-key"), Some("k1"));
/// # Ok::<(), tidegate_rules::SampleError>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SampleRequest {
    /// The HTTP method.
    pub method: Option<String>,
    /// The path, with the query after a `?`.
    pub path: Option<String>,
    /// The host; that of the `Host` header if missing.
    pub host: Option<String>,
    /// The headers. Several lines of a list are joined as in HTTP; of any other header they are repeated values.
    pub headers: Vec<(String, String)>,
    /// The address of the peer: the client, or the proxy in front of us.
    pub ip: Option<String>,
    /// The tenant, as set by the application.
    pub tenant: Option<String>,
    /// The action; empty if missing.
    pub action: Option<String>,
    /// Other attributes that the application sets, such as `account` or `plan`.
    pub attributes: Vec<(String, String)>,
    /// The body, as text.
    pub body: Option<String>,
    /// The size of the body in bytes. If missing, that of the header `Content-Length` or of `body`; 0 for a GET or HEAD without
    /// these; else not known.
    pub size: Option<u64>,
    /// The cost; 1 if missing.
    pub cost: Option<u64>,
}

/// The attributes that a front end would give a [`SampleRequest`].
#[derive(Clone)]
pub struct SampleAttributes {
    action: String,
    cost: u64,
    values: Vec<(SmolStr, String)>,
    /// Further lines of headers that are no lists.
    repeats: Vec<(SmolStr, String)>,
}

/// Why a [`SampleRequest`] is invalid: the field, and how to fix it. It quotes only known names: a value may be a subject, and an
/// unknown name may be a value in the wrong place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleError {
    field: String,
    problem: String,
}

/// The value of each header by attribute, and further values of those that came more than once.
type HeaderLines = (Vec<(SmolStr, String)>, Vec<(SmolStr, String)>);

impl SampleRequest {
    /// A request without any attributes, with a cost of 1.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the HTTP method.
    pub fn with_method(self, method: impl Into<String>) -> Self {
        Self { method: Some(method.into()), ..self }
    }

    /// Sets the path, with its query if it has one.
    pub fn with_path(self, path: impl Into<String>) -> Self {
        Self { path: Some(path.into()), ..self }
    }

    /// Sets the host.
    pub fn with_host(self, host: impl Into<String>) -> Self {
        Self { host: Some(host.into()), ..self }
    }

    /// Adds a header.
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sets the address of the peer.
    pub fn with_ip(self, ip: impl Into<String>) -> Self {
        Self { ip: Some(ip.into()), ..self }
    }

    /// Sets the tenant.
    pub fn with_tenant(self, tenant: impl Into<String>) -> Self {
        Self { tenant: Some(tenant.into()), ..self }
    }

    /// Sets the action.
    pub fn with_action(self, action: impl Into<String>) -> Self {
        Self { action: Some(action.into()), ..self }
    }

    /// Adds an attribute that the application sets.
    pub fn with_attribute(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.attributes.push((name.into(), value.into()));
        self
    }

    /// Sets the body.
    pub fn with_body(self, body: impl Into<String>) -> Self {
        Self { body: Some(body.into()), ..self }
    }

    /// Sets the size of the body.
    pub fn with_size(self, bytes: u64) -> Self {
        Self { size: Some(bytes), ..self }
    }

    /// Sets the cost.
    pub fn with_cost(self, cost: u64) -> Self {
        Self { cost: Some(cost), ..self }
    }
}

impl SampleRequest {
    /// The attributes that a front end would add, under the names that rules read: `method`, `path`, `query`, `host`, `ip`, `header:NAME`,
    /// `body`, `request:size`, `tenant`, and the names of the attributes.
    pub fn attributes(&self) -> Result<SampleAttributes, SampleError> {
        let mut values: Vec<(SmolStr, String)> = Vec::new();
        let mut bring = |name: &str, value: Option<&str>| {
            values.extend(value.map(|value| (SmolStr::new(name), value.to_owned())));
        };
        bring(attributes::METHOD, self.known_method()?);
        let (path, query) = self.target()?;
        bring(attributes::PATH, path);
        bring(attributes::QUERY, query);
        bring(attributes::IP, self.address()?.as_deref());
        bring(attributes::BODY, self.body.as_deref());
        bring(attributes::TENANT, self.tenant.as_deref());
        let (headers, repeats) = self.joined_headers()?;
        let host_header = headers.iter().find(|(name, _)| name == attributes::HOST_HEADER);
        let host = self.host.as_deref().or(host_header.map(|(_, value)| value.as_str()));
        bring(attributes::HOST, host.map(attributes::normalize_host).as_deref());
        bring(attributes::SIZE, self.body_size(&headers).map(|size| size.to_string()).as_deref());
        values.extend(headers);
        for (name, value) in &self.attributes {
            self.check_attribute(name)?;
            values.push((SmolStr::new(name), value.clone()));
        }
        let action = self.action.clone().unwrap_or_default();
        Ok(SampleAttributes { action, cost: self.cost.unwrap_or(1), values, repeats })
    }

    /// The method, unless it is a known one in other letters, which front ends refuse.
    fn known_method(&self) -> Result<Option<&str>, SampleError> {
        match self.method.as_deref().and_then(attributes::misspelled_method) {
            Some(known) => Err(SampleError::new("method", format!("methods are case-sensitive; write `{known}`"))),
            None => Ok(self.method.as_deref()),
        }
    }

    /// The size of the body, if it is known.
    fn body_size(&self, headers: &[(SmolStr, String)]) -> Option<u64> {
        let header = |name: &str| headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str());
        if self.size.is_some() || header(TRANSFER_ENCODING_HEADER).is_some() {
            return self.size;
        }
        if let Some(length) = header(attributes::CONTENT_LENGTH_HEADER) {
            return length.parse().ok();
        }
        let without_body = matches!(self.method.as_deref(), Some("GET" | "HEAD")).then_some(0);
        self.body.as_ref().map(|body| body.len() as u64).or(without_body)
    }

    /// The path and the query.
    fn target(&self) -> Result<(Option<&str>, Option<&str>), SampleError> {
        let Some(target) = &self.path else { return Ok((None, None)) };
        if !target.starts_with('/') && target != "*" {
            let help = "a path begins with `/`; give the host in a field of its own";
            return Err(SampleError::new("path", help));
        }
        let target = target.split('#').next().unwrap_or_default();
        let (path, query) = attributes::split_target(target);
        Ok((Some(path), query))
    }

    fn address(&self) -> Result<Option<String>, SampleError> {
        let parsed = self.ip.as_ref().map(|text| {
            ip::parse(text).ok_or_else(|| SampleError::new("ip", "not an IP address; write one such as 203.0.113.9"))
        });
        Ok(parsed.transpose()?.map(|ip| ip.to_canonical().to_string()))
    }

    /// Headers by attribute, each once, and further lines of those that are no lists. The time grows linearly with their number.
    fn joined_headers(&self) -> Result<HeaderLines, SampleError> {
        let (mut joined, mut repeats): HeaderLines = (Vec::new(), Vec::new());
        let mut positions: HashMap<SmolStr, usize> = HashMap::new();
        for (name, value) in &self.headers {
            if !attributes::is_header_name(name) {
                let help = "not a header name: it has letters, digits and signs such as `-`, and no spaces";
                return Err(SampleError::new("headers", help));
            }
            if value.contains(['\r', '\n', '\0']) {
                return Err(SampleError::new("headers", "the value has a line break; a header is one line"));
            }
            let attribute = SmolStr::from(attributes::header_attribute(name));
            let line = attributes::bytes_to_text(value.trim().as_bytes());
            match positions.get(&attribute).and_then(|position| joined.get_mut(*position)) {
                Some((_, lines)) if attributes::is_list_header(name) => {
                    let lines_and_line = [Cow::Owned(std::mem::take(lines)), line];
                    *lines = attributes::join_header_lines(name, lines_and_line).unwrap_or_default().into_owned();
                }
                Some(_) => repeats.push((attribute, line.into_owned())),
                None => {
                    positions.insert(attribute.clone(), joined.len());
                    joined.push((attribute, line.into_owned()));
                }
            }
        }
        if self.host.is_none() {
            let hosts = repeats.iter().filter(|(name, _)| name == attributes::HOST_HEADER);
            let hosts: Vec<_> = hosts.map(|(_, host)| (attributes::HOST.into(), host.clone())).collect();
            repeats.extend(hosts);
        }
        Ok((joined, repeats))
    }

    fn check_attribute(&self, name: &str) -> Result<(), SampleError> {
        let problem = if name.is_empty() {
            "a name is empty".to_owned()
        } else if name.contains(':') {
            "a name with a colon is reserved for front ends; write a header under `headers`".to_owned()
        } else if attributes::is_reserved(name) {
            format!("`{name}` is set by the front end; write it as a field of the request")
        } else if name == attributes::TENANT && self.tenant.is_some() {
            "`tenant` is given twice; keep the field of the request".to_owned()
        } else {
            return Ok(());
        };
        Err(SampleError::new("attributes", problem))
    }
}

/// Shows names only: values may be subjects, which must not appear in logs.
impl fmt::Debug for SampleRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |pairs: &[(String, String)]| pairs.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        f.debug_struct("Sample")
            .field("method", &self.method)
            .field("action", &self.action)
            .field("headers", &names(&self.headers))
            .field("attributes", &names(&self.attributes))
            .field("cost", &self.cost)
            .finish_non_exhaustive()
    }
}

// === impl SampleAttributes ===

impl SampleAttributes {
    /// The request, for a [`Limiter`](tidegate::Limiter).
    pub fn request(&self) -> Request<'_> {
        let request = Request::new(&self.action).with_cost(self.cost);
        let request = self.values.iter().fold(request, |request, (name, value)| request.with_attribute(name, value));
        self.repeats.iter().fold(request, |request, (name, value)| request.with_further_value(name, value))
    }
}

impl fmt::Debug for SampleAttributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SampleAttributes")?;
        f.debug_set().entries(self.values.iter().map(|(name, _)| name)).finish()
    }
}

// === impl SampleError ===

impl SampleError {
    fn new(field: &str, problem: impl Into<String>) -> Self {
        Self { field: field.to_owned(), problem: problem.into() }
    }

    /// The invalid field: `method`, `path`, `headers`, `ip` or `attributes`.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// The reason, and what to write instead.
    pub fn problem(&self) -> &str {
        &self.problem
    }
}

impl fmt::Display for SampleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.problem)
    }
}

impl Error for SampleError {}

#[cfg(test)]
mod tests;
