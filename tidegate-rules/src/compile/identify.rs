//! Compiling `identify`: sources, trust, and the names that rules may count by.

use smol_str::SmolStr;
use tidegate::attributes::{header_attribute, is_reserved};

use super::Compiler;
use crate::forwarded::{ForwardedHeader, ProxyTrust};
use crate::identity::{Identity, IdentityConfig, Source};
use crate::ip::{self, IpPrefixes};
use crate::provenance::AuthenticatedNames;
use crate::read::Spanned;
use crate::schema_types::{IdentifySpec, SourcesSpec};
use crate::source_file::Span;
use crate::suggest::nearest;

/// The names that exist without being defined, and where they come from then.
const BUILT_IN: [(&str, &str); 4] = [("client", "ip"), ("user", ""), ("tenant", ""), ("plan", "")];

/// Names of settings, which an identity cannot have.
const SETTINGS: [&str; 7] =
    ["authenticated", "trusted_proxies", "trusted_hops", "forwarded", "ipv4_prefix", "ipv6_prefix", "token"];

/// Where things stand that lints speak of.
#[derive(Clone, Debug, Default)]
pub(crate) struct IdentifySpans {
    pub(crate) trusted: Vec<(ipnet::IpNet, Span)>,
    pub(crate) hops: Option<(u8, Span)>,
    pub(crate) names: Vec<(SmolStr, Span)>,
    /// The sources of each of the names.
    pub(crate) sources: Vec<Vec<Span>>,
    /// What a client cannot forge.
    pub(crate) authenticated: AuthenticatedNames,
}

/// An identity that only the application can give, under its own name.
pub(super) fn attribute(name: &'static str) -> impl FnOnce() -> Identity {
    move || Identity::new(name.into(), Vec::new(), &AuthenticatedNames::default()).or_application_attribute()
}

impl Compiler<'_> {
    pub(super) fn identify(&mut self, written: &IdentifySpec) -> (IdentityConfig, Vec<Identity>, IdentifySpans) {
        self.authenticated = AuthenticatedNames::new(written.authenticated.0.iter().map(|name| name.as_str()));
        let mut spans = IdentifySpans { authenticated: self.authenticated.clone(), ..IdentifySpans::default() };
        let identity_config = self.identity_config(written, &mut spans);
        let mut identities: Vec<Identity> = Vec::new();
        for (name, sources) in &written.names {
            spans.names.push((SmolStr::new(&name.value), name.span.clone()));
            spans.sources.push(sources.0.iter().map(|source| source.span.clone()).collect());
            if let Some(identity) = self.identity(name, sources) {
                identities.push(identity);
            }
        }
        for (name, source) in BUILT_IN {
            if !identities.iter().any(|identity| identity.name == name) {
                let sources = Source::parse(source).ok().map(|parsed| (parsed, source.into())).into_iter().collect();
                identities.push(Identity::new(name.into(), sources, &self.authenticated).or_application_attribute());
            }
        }
        (identity_config, identities, spans)
    }

    fn identity(&mut self, name: &Spanned<String>, sources: &SourcesSpec) -> Option<Identity> {
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
                    .with_help(format!("did you mean the setting `{setting}`?")),
            );
        }
        Some(Identity::new(SmolStr::new(&name.value), parsed, &self.authenticated).or_application_attribute())
    }

    /// A source; claims are only read from a header that somebody has verified.
    pub(super) fn source(&mut self, at: &Spanned<String>) -> Option<Source> {
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

    fn identity_config(&mut self, written: &IdentifySpec, spans: &mut IdentifySpans) -> IdentityConfig {
        for at in &written.trusted_proxies.0 {
            match ip::network(at) {
                Ok(network) => spans.trusted.push((network, at.span.clone())),
                Err(why) => _ = self.error("network", &at.span, why),
            }
        }
        spans.hops = written.trusted_hops.as_ref().map(|hops| (hops.value, hops.span.clone()));
        let trust = match &spans.hops {
            Some((_, span)) if !spans.trusted.is_empty() => {
                let message = "`trusted_proxies` and `trusted_hops` contradict each other";
                self.error("trust", span, message).set_help("keep one of the two");
                ProxyTrust::Nobody
            }
            Some((0, span)) => {
                let message = "`trusted_hops` counts the proxy that connects to us, so it is at least 1";
                self.error("trust", span, message).set_help("leave it out if there is no proxy");
                ProxyTrust::Nobody
            }
            Some((hops, _)) => ProxyTrust::Hops(*hops),
            None if spans.trusted.is_empty() => ProxyTrust::Nobody,
            None => ProxyTrust::Networks(spans.trusted.iter().map(|(network, _)| *network).collect()),
        };
        let told = written.forwarded.as_ref().map_or("x-forwarded-for".to_owned(), |name| name.to_ascii_lowercase());
        let forwarded_by = match told.as_str() {
            "x-forwarded-for" => ForwardedHeader::XForwardedFor,
            "forwarded" => ForwardedHeader::Forwarded,
            other => ForwardedHeader::Single(SmolStr::new(other)),
        };
        let length = |prefix: &Option<Spanned<u8>>, otherwise: u8| prefix.as_ref().map_or(otherwise, |at| at.value);
        let prefixes = IpPrefixes::new(length(&written.ipv4_prefix, 32), length(&written.ipv6_prefix, 64));
        let prefixes = prefixes.unwrap_or_else(|why| {
            let at = written.ipv4_prefix.as_ref().filter(|at| at.value > 32).or(written.ipv6_prefix.as_ref());
            self.error("prefix", &at.map_or(0..0, |at| at.span.clone()), why);
            IpPrefixes::default()
        });
        let token = header_attribute(written.token.as_ref().map_or("authorization", |name| name)).into();
        IdentityConfig { trust, forwarded_by, forwarded: header_attribute(&told).into(), prefixes, token }
    }
}
