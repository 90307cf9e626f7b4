//! Compiling `identify`: sources, trusted proxies, and the names that rules may count by.

use smol_str::SmolStr;
use tidegate::attributes::{NormalForms, header_attribute, is_reserved};

use super::Compiler;
use crate::forwarded::{ForwardedHeader, ProxyTrust};
use crate::identity::{Identity, IdentityConfig, IdentitySource, Source};
use crate::ip::{self, IpPrefixes};
use crate::provenance::AuthenticatedNames;
use crate::read::Spanned;
use crate::repeated::{RepeatedPolicies, RepeatedPolicy};
use crate::schema_types::{IdentifySpec, SourcesSpec};
use crate::source_file::Span;
use crate::suggest::nearest;

/// Names that exist without being defined, and their default sources.
const BUILT_IN: [(&str, &str); 4] = [("client", "ip"), ("user", ""), ("tenant", ""), ("plan", "")];

/// Names of settings, which an identity must not have.
const SETTINGS: [&str; 9] = [
    "authenticated",
    "trusted_proxies",
    "trusted_hops",
    "forwarded",
    "ipv4_prefix",
    "ipv6_prefix",
    "token",
    "repeated",
    "escaped_slashes",
];

/// Positions in `identify`, for lints.
#[derive(Clone, Debug, Default)]
pub struct IdentifySpans {
    pub trusted: Vec<(ipnet::IpNet, Span)>,
    pub hops: Option<(u8, Span)>,
    pub names: Vec<(SmolStr, Span)>,
    /// The sources of each of the names.
    pub sources: Vec<Vec<Span>>,
    /// Names of values that a client cannot forge.
    pub authenticated: AuthenticatedNames,
    /// Which value counts if one comes more than once, with what it is said of.
    pub repeated: Vec<(SmolStr, RepeatedPolicy, Span)>,
}

/// An identity that only the application sets, as the attribute of the same name.
pub(super) fn attribute(name: &'static str) -> impl FnOnce() -> Identity {
    move || Identity::new(name.into(), Vec::new()).or_application_attribute()
}

/// The name of the header with the token.
fn token_header(spec: &IdentifySpec) -> &str {
    spec.token.as_ref().map_or("authorization", |name| name)
}

impl Compiler<'_> {
    pub(super) fn identify(&mut self, spec: &Spanned<IdentifySpec>) -> (IdentityConfig, Vec<Identity>, IdentifySpans) {
        self.lost_identities = spec.removed.iter().map(SmolStr::new).collect();
        let names = spec.authenticated.0.iter().map(|name| name.as_str());
        self.authenticated = AuthenticatedNames::new(names, token_header(spec));
        let mut spans = IdentifySpans { authenticated: self.authenticated.clone(), ..IdentifySpans::default() };
        let mut identity_config = self.identity_config(spec, &mut spans);
        let mut identities: Vec<Identity> = Vec::new();
        for (name, sources) in &spec.names {
            spans.names.push((SmolStr::new(&name.value), name.span.clone()));
            spans.sources.push(sources.0.iter().map(|source| source.span.clone()).collect());
            match self.identity(name, sources) {
                Some(identity) => identities.push(identity),
                None => self.lost_identities.push(SmolStr::new(&name.value)),
            }
        }
        for (name, source) in BUILT_IN {
            if !identities.iter().any(|identity| identity.name == name) {
                let default = |parsed| IdentitySource::new(parsed, source, None, &self.authenticated);
                let sources = Source::parse(source).ok().map(default).into_iter().collect();
                identities.push(Identity::new(name.into(), sources).or_application_attribute());
            }
        }
        let repeated = self.repeated(spec.repeated.as_ref(), &identities, &identity_config.token, &mut spans);
        identity_config.repeated = repeated;
        (identity_config, identities, spans)
    }

    fn identity(&mut self, name: &Spanned<String>, sources: &SourcesSpec) -> Option<Identity> {
        if is_reserved(name) || Source::parse(name).is_ok() || name.is_empty() {
            let message = format!("`{}` cannot be the name of an identity: it is a source", name.value);
            self.error("identity", &name.span, message).set_help("choose another name");
            return None;
        }
        if name.contains('|') {
            let message = format!("`{}` cannot be the name of an identity", name.value);
            self.error("identity", &name.span, message)
                .set_help("a normal form follows a source: `body:account | lower`");
            return None;
        }
        let parsed: Vec<Option<IdentitySource>> =
            sources.0.iter().map(|source| self.source_with_forms(source)).collect();
        let parsed: Vec<IdentitySource> = parsed.into_iter().collect::<Option<_>>()?;
        if parsed.is_empty() {
            let message = format!("`{}` has no source", name.value);
            self.error("identity", &name.span, message).set_help("give it one, such as `header:x-user-id` or `ip`");
            return None;
        }
        // A misspelt setting would become an identity that no rule uses.
        if let Some(setting) = nearest(name, SETTINGS.iter().copied())
            && setting != name.as_str()
        {
            let message = format!("`{}` is read as the name of an identity", name.value);
            self.problems.push(
                crate::problem::Problem::warning("identity", message, name.span.clone())
                    .with_help(format!("did you mean the setting `{setting}`?")),
            );
        }
        Some(Identity::new(SmolStr::new(&name.value), parsed).or_application_attribute())
    }

    /// Parses a source with its normal forms, and reports an invalid one.
    fn source_with_forms(&mut self, field: &Spanned<String>) -> Option<IdentitySource> {
        let (text, forms) = self.split_forms(field)?;
        self.source(text, forms, &field.span)
    }

    /// Splits a source from its normal forms, and reports an unknown form.
    pub(super) fn split_forms<'f>(&mut self, field: &'f Spanned<String>) -> Option<(&'f str, Option<NormalForms>)> {
        match NormalForms::split(field) {
            Ok(parts) => Some(parts),
            Err(error) => {
                self.error("normal-form", &field.span, error.to_string())
                    .set_help("chain them: `body:account | trim | lower`");
                None
            }
        }
    }

    /// Parses a source without its normal forms, and reports an invalid one.
    pub(super) fn source(&mut self, text: &str, forms: Option<NormalForms>, span: &Span) -> Option<IdentitySource> {
        match Source::parse(text) {
            Ok(source) => Some(IdentitySource::new(source, text, forms, &self.authenticated)),
            Err(why) => {
                let help = "sources are `ip`, `net:24/56`, `header:NAME`, `query:NAME`, `cookie:NAME`, `claim:NAME`, \
                            `body:FIELD`, `attr:NAME`, `path`, `host`, `method`, `action`, `const:TEXT`";
                // No source has a hyphen, and most headers have one.
                let is_header =
                    text.contains('-') && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
                let help = if is_header { format!("write `header:{text}`") } else { help.to_owned() };
                self.error("source", span, why).set_help(help);
                None
            }
        }
    }

    fn identity_config(&mut self, spec: &IdentifySpec, spans: &mut IdentifySpans) -> IdentityConfig {
        for field in &spec.trusted_proxies.0 {
            match ip::parse_network(field) {
                Ok(network) => spans.trusted.push((network, field.span.clone())),
                Err(why) => _ = self.error("network", &field.span, why),
            }
        }
        spans.hops = spec.trusted_hops.as_ref().map(|hops| (hops.value, hops.span.clone()));
        let trust = match &spans.hops {
            Some((_, span)) if !spans.trusted.is_empty() => {
                let message = "`trusted_proxies` and `trusted_hops` contradict each other";
                self.error("trust", span, message).set_help("keep one of the two");
                ProxyTrust::None
            }
            Some((0, span)) => {
                let message = "`trusted_hops` includes the proxy that connects to us, so it must be at least 1";
                self.error("trust", span, message).set_help("leave it out if there is no proxy");
                ProxyTrust::None
            }
            Some((hops, _)) => ProxyTrust::Hops(*hops),
            None if spans.trusted.is_empty() => ProxyTrust::None,
            None => ProxyTrust::Networks(spans.trusted.iter().map(|(network, _)| *network).collect()),
        };
        let header_name =
            spec.forwarded.as_ref().map_or("x-forwarded-for".to_owned(), |name| name.to_ascii_lowercase());
        let forwarded_by = match header_name.as_str() {
            "x-forwarded-for" => ForwardedHeader::XForwardedFor,
            "forwarded" => ForwardedHeader::Forwarded,
            other => ForwardedHeader::Single(SmolStr::new(other)),
        };
        let length = |prefix: &Option<Spanned<u8>>, default: u8| prefix.as_ref().map_or(default, |field| field.value);
        let prefixes = IpPrefixes::new(length(&spec.ipv4_prefix, 32), length(&spec.ipv6_prefix, 64));
        let prefixes = prefixes.unwrap_or_else(|why| {
            let field = spec.ipv4_prefix.as_ref().filter(|field| field.value > 32).or(spec.ipv6_prefix.as_ref());
            self.error("prefix", &field.map_or(0..0, |field| field.span.clone()), why);
            IpPrefixes::default()
        });
        let token = header_attribute(token_header(spec)).into();
        let (forwarded, repeated) = (header_attribute(&header_name).into(), RepeatedPolicies::default());
        IdentityConfig { trust, forwarded_by, forwarded, prefixes, token, repeated }
    }
}
