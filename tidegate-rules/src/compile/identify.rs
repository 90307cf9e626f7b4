//! Compiling `identify`: sources, trust, and the names that rules may count by.

use smol_str::SmolStr;
use tidegate::attributes::{header_attribute, is_reserved};

use super::Compiler;
use crate::forwarded::{ForwardedBy, Trust};
use crate::identity::{Identity, Reading, Source};
use crate::ip::{self, Prefixes};
use crate::read::At;
use crate::source::Span;
use crate::suggest::nearest;
use crate::word::Authenticated;
use crate::written::{Identify, Sources};

/// The names that exist without being defined, and where they come from then.
const BUILT_IN: [(&str, &str); 4] = [("client", "ip"), ("user", ""), ("tenant", ""), ("plan", "")];

/// Names of settings, which an identity cannot have.
const SETTINGS: [&str; 7] =
    ["authenticated", "trusted_proxies", "trusted_hops", "forwarded", "ipv4_prefix", "ipv6_prefix", "token"];

/// Where things stand that lints speak of.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places {
    pub(crate) trusted: Vec<(ipnet::IpNet, Span)>,
    pub(crate) hops: Option<(u8, Span)>,
    pub(crate) names: Vec<(SmolStr, Span)>,
    /// The sources of each of the names.
    pub(crate) sources: Vec<Vec<Span>>,
    /// What a client cannot forge.
    pub(crate) authenticated: Authenticated,
}

/// An identity that only the application can give, under its own name.
pub(super) fn attribute(name: &'static str) -> impl FnOnce() -> Identity {
    move || Identity::new(name.into(), Vec::new(), &Authenticated::default()).or_given()
}

impl Compiler<'_> {
    pub(super) fn identify(&mut self, written: &Identify) -> (Reading, Vec<Identity>, Places) {
        self.authenticated = Authenticated::new(written.authenticated.0.iter().map(|name| name.as_str()));
        let mut places = Places { authenticated: self.authenticated.clone(), ..Places::default() };
        let reading = self.reading(written, &mut places);
        let mut identities: Vec<Identity> = Vec::new();
        for (name, sources) in &written.names {
            places.names.push((SmolStr::new(&name.value), name.span.clone()));
            places.sources.push(sources.0.iter().map(|source| source.span.clone()).collect());
            if let Some(identity) = self.identity(name, sources) {
                identities.push(identity);
            }
        }
        for (name, source) in BUILT_IN {
            if !identities.iter().any(|identity| identity.name == name) {
                let sources = Source::parse(source).ok().map(|parsed| (parsed, source.into())).into_iter().collect();
                identities.push(Identity::new(name.into(), sources, &self.authenticated).or_given());
            }
        }
        (reading, identities, places)
    }

    fn identity(&mut self, name: &At<String>, sources: &Sources) -> Option<Identity> {
        if is_reserved(name) || Source::parse(name).is_ok() || name.is_empty() {
            let message = format!("`{}` cannot be the name of an identity: it is a source already", name.value);
            self.error("identity", &name.span, message).set_help("choose another name");
            return None;
        }
        let mut parsed = Vec::new();
        for source in &sources.0 {
            parsed.push((self.source(source)?, SmolStr::new(&source.value)));
        }
        if parsed.is_empty() {
            let message = format!("`{}` has no source", name.value);
            self.error("identity", &name.span, message).set_help("give it one, such as `header:x-user-id` or `ip`");
            return None;
        }
        // A setting with a slip of the pen would become an identity that nobody uses.
        if let Some(setting) = nearest(name, SETTINGS.iter().copied())
            && setting != name.as_str()
        {
            let message = format!("`{}` is taken as an identity", name.value);
            self.problems.push(
                crate::problem::Problem::warning("identity", message, name.span.clone())
                    .help(format!("did you mean the setting `{setting}`?")),
            );
        }
        Some(Identity::new(SmolStr::new(&name.value), parsed, &self.authenticated).or_given())
    }

    /// A source; claims are only read from a header that somebody has verified.
    pub(super) fn source(&mut self, at: &At<String>) -> Option<Source> {
        match Source::parse(at) {
            Ok(source) => Some(source),
            Err(why) => {
                let help = "sources are `ip`, `net:24/56`, `header:NAME`, `query:NAME`, `cookie:NAME`, `claim:NAME`, \
                            `body:FIELD`, `attr:NAME`, `path`, `host`, `method`, `action`, `const:TEXT`";
                self.error("source", &at.span, why).set_help(help);
                None
            }
        }
    }

    fn reading(&mut self, written: &Identify, places: &mut Places) -> Reading {
        for at in &written.trusted_proxies.0 {
            match ip::network(at) {
                Ok(network) => places.trusted.push((network, at.span.clone())),
                Err(why) => _ = self.error("network", &at.span, why),
            }
        }
        places.hops = written.trusted_hops.as_ref().map(|hops| (hops.value, hops.span.clone()));
        let trust = match &places.hops {
            Some((_, span)) if !places.trusted.is_empty() => {
                let message = "`trusted_proxies` and `trusted_hops` contradict each other";
                self.error("trust", span, message).set_help("keep one of the two");
                Trust::Nobody
            }
            Some((0, span)) => {
                let message = "`trusted_hops` counts the proxy that connects to us, so it is at least 1";
                self.error("trust", span, message).set_help("leave it out if there is no proxy");
                Trust::Nobody
            }
            Some((hops, _)) => Trust::Hops(*hops),
            None if places.trusted.is_empty() => Trust::Nobody,
            None => Trust::Networks(places.trusted.iter().map(|(network, _)| *network).collect()),
        };
        let told = written.forwarded.as_ref().map_or("x-forwarded-for".to_owned(), |name| name.to_ascii_lowercase());
        let forwarded_by = match told.as_str() {
            "x-forwarded-for" => ForwardedBy::XForwardedFor,
            "forwarded" => ForwardedBy::Forwarded,
            other => ForwardedBy::Single(SmolStr::new(other)),
        };
        let length = |prefix: &Option<At<u8>>, otherwise: u8| prefix.as_ref().map_or(otherwise, |at| at.value);
        let prefixes = Prefixes::new(length(&written.ipv4_prefix, 32), length(&written.ipv6_prefix, 64));
        let prefixes = prefixes.unwrap_or_else(|why| {
            let at = written.ipv4_prefix.as_ref().filter(|at| at.value > 32).or(written.ipv6_prefix.as_ref());
            self.error("prefix", &at.map_or(0..0, |at| at.span.clone()), why);
            Prefixes::default()
        });
        let token = header_attribute(written.token.as_ref().map_or("authorization", |name| name)).into();
        Reading { trust, forwarded_by, forwarded: header_attribute(&told).into(), prefixes, token }
    }
}
