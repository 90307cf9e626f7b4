//! `RequestDescription`: a request as somebody describes it who is not an HTTP server: the caller of the check API, a command line, a test.
//! It does not know the rules, so it has attributes that no rule reads, too.

use std::error::Error;
use std::fmt;
use std::net::IpAddr;

use tidegate::attributes::{
    self, ASTERISK_PATH, BODY, METHOD, RequestAttributes, SIZE, TENANT, header_attribute, stated_body_size,
};

use crate::ip;

/// A request as the caller of the check API, a command line or a test describes it.
///
/// ```
/// use tidegate_rules::RequestDescription;
///
/// let description = RequestDescription::new().with_method("GET").with_path("/search?q=tide").with_header("X-Api-Key", "k1");
/// let attributes = description.attributes()?;
/// let request = attributes.request();
/// assert_eq!((request.attribute("path"), request.attribute("query")), (Some("/search"), Some("q=tide")));
/// assert_eq!(request.attribute("header:x-api-key"), Some("k1"));
/// # Ok::<(), tidegate_rules::RequestDescriptionError>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestDescription {
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

/// Why a [`RequestDescription`] is invalid: the field, and how to fix it. It quotes only known names: a value may be a subject, and an
/// unknown name may be a value in the wrong place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestDescriptionError {
    field: String,
    problem: String,
}

impl RequestDescription {
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

impl RequestDescription {
    /// The attributes that a front end would add, under the names that rules read: `method`, `path`, `query`, `host`, `ip`, `header:NAME`,
    /// `body`, `request:size`, `tenant`, and the names of the attributes.
    pub fn attributes(&self) -> Result<RequestAttributes<'_>, RequestDescriptionError> {
        let mut attributes = RequestAttributes::new(self.action.as_deref().unwrap_or_default(), self.cost.unwrap_or(1));
        if let Some(method) = self.known_method()? {
            attributes.add(METHOD, method);
        }
        if let Some(target) = self.target()? {
            attributes.add_target(target);
        }
        if let Some(peer) = self.peer()? {
            attributes.add_address(peer);
        }
        self.check_headers()?;
        attributes.add_host(self.host.as_deref(), self.lines("host"));
        for (name, value) in [(BODY, &self.body), (TENANT, &self.tenant)] {
            if let Some(value) = value {
                attributes.add(name, value);
            }
        }
        if let Some(size) = self.body_size() {
            attributes.add(SIZE, size.to_string());
        }
        // Lines of one header stay in their order.
        let mut lines: Vec<(String, &[u8])> =
            self.headers.iter().map(|(name, value)| (header_attribute(name), line(value))).collect();
        lines.sort_by(|(name, _), (other, _)| name.cmp(other));
        for header in lines.chunk_by(|(name, _), (other, _)| name == other) {
            attributes.add_header(header[0].0.clone(), header.iter().map(|(_, line)| *line));
        }
        for (name, value) in &self.attributes {
            self.check_attribute(name)?;
            attributes.add(name, value);
        }
        Ok(attributes)
    }

    /// The method, unless it is a known one in other letters, which front ends refuse.
    fn known_method(&self) -> Result<Option<&str>, RequestDescriptionError> {
        match self.method.as_deref().and_then(attributes::misspelled_method) {
            Some(known) => {
                Err(RequestDescriptionError::new("method", format!("methods are case-sensitive; write `{known}`")))
            }
            None => Ok(self.method.as_deref()),
        }
    }

    /// The size of the body, if it is known. Without a size, a length or a coding, the body itself has it.
    fn body_size(&self) -> Option<u64> {
        let (coding, length) = ("transfer-encoding", "content-length");
        let has_coding = self.lines(coding).next().is_some();
        let is_framed = has_coding || self.lines(length).next().is_some();
        let body = self.body.as_ref().filter(|_| !is_framed).map(|body| body.len() as u64);
        let method = self.method.as_deref().unwrap_or_default();
        self.size.or(body).or_else(|| stated_body_size(method, true, has_coding, self.lines(length)))
    }

    /// The path with the query.
    fn target(&self) -> Result<Option<&str>, RequestDescriptionError> {
        match self.path.as_deref() {
            Some(target) if !target.starts_with('/') && target != ASTERISK_PATH => {
                let help = "a path begins with `/`; give the host in a field of its own";
                Err(RequestDescriptionError::new("path", help))
            }
            target => Ok(target),
        }
    }

    fn peer(&self) -> Result<Option<IpAddr>, RequestDescriptionError> {
        let parsed = self.ip.as_ref().map(|text| {
            ip::parse(text)
                .ok_or_else(|| RequestDescriptionError::new("ip", "not an IP address; write one such as 203.0.113.9"))
        });
        parsed.transpose()
    }

    /// The lines of a header.
    fn lines(&self, name: &'static str) -> impl Iterator<Item = &[u8]> {
        let lines = self.headers.iter().filter(move |(header, _)| header.eq_ignore_ascii_case(name));
        lines.map(|(_, value)| line(value))
    }

    fn check_headers(&self) -> Result<(), RequestDescriptionError> {
        for (name, value) in &self.headers {
            if !attributes::is_header_name(name) {
                let help = "not a header name: it has letters, digits and signs such as `-`, and no spaces";
                return Err(RequestDescriptionError::new("headers", help));
            }
            if value.contains(['\r', '\n', '\0']) {
                return Err(RequestDescriptionError::new(
                    "headers",
                    "the value has a line break; a header is one line",
                ));
            }
        }
        Ok(())
    }

    fn check_attribute(&self, name: &str) -> Result<(), RequestDescriptionError> {
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
        Err(RequestDescriptionError::new("attributes", problem))
    }
}

/// Shows names only: values may be subjects, which must not appear in logs.
impl fmt::Debug for RequestDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |pairs: &[(String, String)]| pairs.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        f.debug_struct("RequestDescription")
            .field("method", &self.method)
            .field("action", &self.action)
            .field("headers", &names(&self.headers))
            .field("attributes", &names(&self.attributes))
            .field("cost", &self.cost)
            .finish_non_exhaustive()
    }
}

/// The value of a header without the white space around it, which is not a part of it.
fn line(value: &str) -> &[u8] {
    value.trim().as_bytes()
}

// === impl RequestDescriptionError ===

impl RequestDescriptionError {
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

impl fmt::Display for RequestDescriptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.problem)
    }
}

impl Error for RequestDescriptionError {}

#[cfg(test)]
mod tests;
