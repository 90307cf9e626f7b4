//! `Condition`: which requests a rule applies to. Every field must match; an empty field matches everything.

use std::fmt;

use ipnet::IpNet;
use smol_str::SmolStr;
use tidegate::attributes;

use crate::path::PathPattern;
use crate::request_view::RequestView;

/// The values that a request must have. An empty list matches everything.
#[derive(Clone, Debug, Default)]
pub struct Condition {
    pub methods: Vec<SmolStr>,
    pub paths: Vec<PathPattern>,
    pub hosts: Vec<HostPattern>,
    /// Header attributes, each with the values that match; an empty list matches any value.
    pub headers: Vec<(SmolStr, Vec<SmolStr>)>,
    pub tenants: Vec<SmolStr>,
    pub plans: Vec<SmolStr>,
    pub actions: Vec<SmolStr>,
    pub networks: Vec<IpNet>,
}

/// A host, or all of its subdomains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPattern {
    Exactly(SmolStr),
    Below(SmolStr),
}

impl Condition {
    /// How an exemption by network is written, for help.
    pub const BY_NETWORK_HELP: &str = "otherwise match the network too: `ip: 10.0.0.0/8`";

    /// How to state that a client cannot choose the host, for help.
    pub const BY_HOST_HELP: &str =
        "if a proxy rejects other hosts, declare it: `authenticated: [host]` below `identify`";

    pub fn matches(&self, view: &RequestView<'_, '_>) -> bool {
        any(&self.methods, view.method(), |wanted, method| is_method(wanted, method))
            && any(&self.paths, view.path(), PathPattern::matches)
            && (self.hosts.is_empty() || any(&self.hosts, view.host(), HostPattern::matches))
            && self.headers.iter().all(|(name, values)| {
                let found = view.header_value(name);
                found.is_some_and(|found| values.is_empty() || values.iter().any(|value| *value == *found))
            })
            && (self.tenants.is_empty() || any(&self.tenants, view.tenant(), |wanted, tenant| wanted == tenant))
            && (self.plans.is_empty() || self.plans.iter().any(|wanted| wanted == view.plan()))
            && (self.actions.is_empty() || self.actions.iter().any(|wanted| wanted == view.request.action()))
            && (self.networks.is_empty()
                || view.client().is_some_and(|ip| self.networks.iter().any(|network| network.contains(&ip))))
    }

    /// Whether every request that matches `other` is known to match this condition too.
    pub fn covers(&self, other: &Self) -> bool {
        subset(&other.methods, &self.methods, |other, own| is_method(own, other))
            && subset(&other.paths, &self.paths, |other, own| own.covers(other))
            && subset(&other.hosts, &self.hosts, |other, own| own.covers(other))
            && subset(&other.tenants, &self.tenants, |a, b| a == b)
            && subset(&other.plans, &self.plans, |a, b| a == b)
            && subset(&other.actions, &self.actions, |a, b| a == b)
            && subset(&other.networks, &self.networks, |other, own| own.contains(other))
            && self.headers.iter().all(|(name, values)| {
                let same = other.headers.iter().find(|(other, _)| other == name);
                same.is_some_and(|(_, others)| subset(others, values, |a, b| a == b))
            })
    }

    /// Appends the attributes that the condition reads.
    pub fn reads(&self, names: &mut Vec<SmolStr>) {
        names.extend((!self.methods.is_empty()).then(|| attributes::METHOD.into()));
        names.extend((!self.paths.is_empty()).then(|| attributes::PATH.into()));
        names.extend((!self.hosts.is_empty()).then(|| attributes::HOST.into()));
        names.extend(self.headers.iter().map(|(name, _)| name.clone()));
    }
}

impl HostPattern {
    pub(crate) fn matches(&self, host: &str) -> bool {
        match self {
            Self::Exactly(own) => own == host,
            Self::Below(own) => {
                host.strip_suffix(own.as_str()).is_some_and(|front| front.len() > 1 && front.ends_with('.'))
            }
        }
    }

    /// Whether it matches every host that `other` matches.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Below(own), Self::Below(other)) if own == other => true,
            (_, Self::Exactly(other) | Self::Below(other)) => self.matches(other),
        }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(host) => f.write_str(host),
            Self::Below(host) => write!(f, "*.{host}"),
        }
    }
}

/// Whether a method is the wanted one. `GET` includes `HEAD`, which costs a server the same work.
pub fn is_method(wanted: &str, method: &str) -> bool {
    wanted == method || (wanted == "GET" && method == "HEAD")
}

/// Whether `wanted` is empty or one of its values matches `found`.
fn any<T>(wanted: &[T], found: Option<&str>, is_match: impl Fn(&T, &str) -> bool) -> bool {
    wanted.is_empty() || found.is_some_and(|found| wanted.iter().any(|wanted| is_match(wanted, found)))
}

/// Whether each of `inner` is contained in one of `outer`; an empty list stands for everything.
fn subset<T>(inner: &[T], outer: &[T], like: impl Fn(&T, &T) -> bool) -> bool {
    outer.is_empty() || (!inner.is_empty() && inner.iter().all(|one| outer.iter().any(|other| like(one, other))))
}
