//! `Identity`: a named list of sources of which the first value identifies the sender of a request. Values of different
//! sources are different subjects; requests without any value share one subject, so none is exempt.

use std::borrow::Cow;
use std::net::IpAddr;

use smol_str::SmolStr;
use tidegate::attributes;

use crate::forwarded::{self, ForwardedHeader, ProxyTrust};
use crate::ip::{self, IpPrefixes};
use crate::provenance::{AuthenticatedNames, Provenance};
use crate::query::trimmed;
use crate::repeated::RepeatedPolicies;
use crate::request_view::RequestView;

/// Where a value is read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The client's network, by the prefixes of the file.
    Ip,
    /// The client's network, with prefixes of its own.
    Net(IpPrefixes),
    /// The attribute with this name: a header, the method, or one that the application sets.
    Attribute(SmolStr),
    /// A parameter of the query string.
    Query(SmolStr),
    /// A cookie.
    Cookie(SmolStr),
    /// A claim of the token.
    Claim(SmolStr),
    /// A field of a JSON body.
    Body(SmolStr),
    /// The path in its normal form.
    Path,
    /// The host in its normal form.
    Host,
    /// The action.
    Action,
    /// Always the same text.
    Constant(SmolStr),
}

/// A named list of sources; the first one with a value is used.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) name: SmolStr,
    pub(crate) sources: Vec<Source>,
    /// The text of each source in the file, which is the kind of its values.
    pub(crate) kinds: Vec<SmolStr>,
    /// The provenance of each source.
    pub(crate) provenances: Vec<Provenance>,
    /// An attribute of the application that overrides the sources.
    pub(crate) application_attribute: Option<SmolStr>,
}

/// The value of an identity, with its kind.
#[derive(Clone, Debug)]
pub(crate) struct IdentityValue<'q> {
    pub(crate) kind: SmolStr,
    pub(crate) value: Cow<'q, str>,
    /// Whether it belongs to a tenant: users and keys do, addresses and constants do not.
    pub(crate) belongs_to_tenant: bool,
    /// Its provenance.
    pub(crate) provenance: Provenance,
    /// Further values of a cookie that came more than once. Each counts as a subject of its own.
    pub(crate) others: Vec<String>,
}

/// The settings of `identify` that sources are read with.
#[derive(Clone, Debug)]
pub(crate) struct IdentityConfig {
    pub(crate) trust: ProxyTrust,
    pub(crate) forwarded_by: ForwardedHeader,
    /// The attribute of the header in which proxies send the client's address.
    pub(crate) forwarded: SmolStr,
    pub(crate) prefixes: IpPrefixes,
    /// The attribute of the header with the token.
    pub(crate) token: SmolStr,
    /// Which value counts if a source comes more than once.
    pub(crate) repeated: RepeatedPolicies,
}

impl Identity {
    /// An identity from sources with their texts.
    pub(crate) fn new(name: SmolStr, sources: Vec<(Source, SmolStr)>, authenticated: &AuthenticatedNames) -> Self {
        let provenances = sources.iter().map(|(source, _)| authenticated.provenance(source)).collect();
        let (sources, kinds) = sources.into_iter().unzip();
        Self { name, sources, kinds, provenances, application_attribute: None }
    }

    /// Lets an attribute of the same name, set by the application, override the sources.
    pub(crate) fn or_application_attribute(self) -> Self {
        Self { application_attribute: Some(self.name.clone()), ..self }
    }

    /// The value of the first source that has one. A cookie with several values makes the request [refused](RequestView::problem).
    pub(crate) fn find<'q>(&self, view: &RequestView<'_, 'q>) -> Option<IdentityValue<'q>> {
        self.find_with(view, |source| Some((source.read(view)?, Vec::new())))
    }

    /// The value of the first source that has one, with all values of a cookie.
    pub(crate) fn find_all<'q>(&self, view: &RequestView<'_, 'q>) -> Option<IdentityValue<'q>> {
        self.find_with(view, |source| source.read_all(view))
    }

    fn find_with<'q>(
        &self,
        view: &RequestView<'_, 'q>,
        read: impl Fn(&Source) -> Option<(Cow<'q, str>, Vec<String>)>,
    ) -> Option<IdentityValue<'q>> {
        if let Some(value) =
            self.application_attribute.as_ref().and_then(|name| non_empty(view.request.attribute(name)?))
        {
            return Some(IdentityValue {
                kind: self.name.clone(),
                value: value.into(),
                belongs_to_tenant: true,
                provenance: Provenance::Verified,
                others: Vec::new(),
            });
        }
        let value_of = |((source, kind), provenance): ((&Source, &SmolStr), &Provenance)| {
            let (value, others) = read(source)?;
            // A single source needs no kind of its own, and the application may set the value itself.
            let kind = if self.sources.len() == 1 { &self.name } else { kind };
            Some(IdentityValue {
                kind: kind.clone(),
                value,
                belongs_to_tenant: source.belongs_to_tenant(),
                provenance: *provenance,
                others,
            })
        };
        self.sources.iter().zip(&self.kinds).zip(&self.provenances).find_map(value_of)
    }

    /// The claim that the value comes from, if it comes from one.
    pub(crate) fn claim_in_use(&self, view: &RequestView<'_, '_>) -> Option<&SmolStr> {
        let set = self.application_attribute.as_ref().and_then(|name| non_empty(view.request.attribute(name)?));
        if set.is_some() {
            return None;
        }
        let used = self.sources.iter().position(|source| source.read(view).is_some())?;
        matches!(self.sources[used], Source::Claim(_)).then(|| &self.kinds[used])
    }

    /// The provenance if there is no value: forgeable, unless no source identifies a sender.
    pub(crate) fn provenance_if_missing(&self) -> Provenance {
        let identifies_nobody = !self.provenances.is_empty()
            && self.provenances.iter().all(|provenance| *provenance == Provenance::NoIdentity);
        if identifies_nobody { Provenance::NoIdentity } else { Provenance::Forgeable }
    }

    /// Whether a value may belong to a tenant.
    pub(crate) fn may_belong_to_tenant(&self) -> bool {
        self.application_attribute.is_some() || self.sources.iter().any(Source::belongs_to_tenant)
    }

    /// Appends the attributes that the identity reads.
    pub(crate) fn reads(&self, identity_config: &IdentityConfig, names: &mut Vec<SmolStr>) {
        names.extend(self.application_attribute.clone());
        for source in &self.sources {
            source.reads(identity_config, names);
        }
    }
}

impl Source {
    /// The value; `None` if it is missing or empty.
    pub(crate) fn read<'q>(&self, view: &RequestView<'_, 'q>) -> Option<Cow<'q, str>> {
        let request = view.request;
        let owned = |value: String| non_empty(&value).map(|value| Cow::Owned(value.to_owned()));
        match self {
            Self::Ip => Some(view.matcher.identity_config.prefixes.subject(view.client()?).into()),
            Self::Net(prefixes) => Some(prefixes.subject(view.client()?).into()),
            Self::Attribute(name) => non_empty(view.attribute(name)?).map(Cow::Borrowed),
            Self::Query(name) => trimmed(view.query_parameter(name)?),
            Self::Cookie(name) => view.cookie(name),
            Self::Claim(name) => owned(view.claim(name)?),
            Self::Body(name) => owned(view.body_field(name)?),
            Self::Path => view.path().map(Cow::Borrowed),
            Self::Host => owned(view.host()?.to_owned()),
            Self::Action => non_empty(request.action()).map(Cow::Borrowed),
            Self::Constant(text) => Some(Cow::Owned(text.to_string())),
        }
    }

    /// The value, and further values if a cookie has several.
    fn read_all<'q>(&self, view: &RequestView<'_, 'q>) -> Option<(Cow<'q, str>, Vec<String>)> {
        match self {
            Self::Cookie(name) => view.cookies(name),
            _ => Some((self.read(view)?, Vec::new())),
        }
    }

    /// Whether values of this source belong to a tenant.
    pub(crate) fn belongs_to_tenant(&self) -> bool {
        match self {
            Self::Ip | Self::Net(_) | Self::Path | Self::Host | Self::Action | Self::Constant(_) => false,
            Self::Attribute(name) => name != attributes::METHOD,
            Self::Query(_) | Self::Cookie(_) | Self::Claim(_) | Self::Body(_) => true,
        }
    }

    pub(crate) fn reads(&self, identity_config: &IdentityConfig, names: &mut Vec<SmolStr>) {
        match self {
            Self::Ip | Self::Net(_) => names.extend([attributes::IP.into(), identity_config.forwarded.clone()]),
            Self::Attribute(name) => names.push(name.clone()),
            Self::Query(_) => names.push(attributes::QUERY.into()),
            Self::Cookie(_) => names.push(attributes::COOKIE_HEADER.into()),
            Self::Claim(_) => names.push(identity_config.token.clone()),
            Self::Body(_) => names.push(attributes::BODY.into()),
            Self::Path => names.push(attributes::PATH.into()),
            Self::Host => names.push(attributes::HOST.into()),
            Self::Action | Self::Constant(_) => {}
        }
    }

    /// Parses a source; the error says what is wrong.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let named = |name: &str| {
            let fits = !name.is_empty() && name.len() <= 128 && !name.contains(char::is_whitespace);
            if fits { Ok(SmolStr::new(name)) } else { Err(format!("`{text}` needs a name after the colon")) }
        };
        match text.split_once(':') {
            None => match text {
                "ip" => Ok(Self::Ip),
                "path" => Ok(Self::Path),
                "action" => Ok(Self::Action),
                "host" => Ok(Self::Host),
                "method" => Ok(Self::Attribute(text.into())),
                _ => Err(format!("there is no source `{text}`")),
            },
            Some(("header", name)) => Ok(Self::Attribute(attributes::header_attribute(&named(name)?).into())),
            Some(("query", name)) => named(name).map(Self::Query),
            Some(("cookie", name)) => named(name).map(Self::Cookie),
            Some(("claim", name)) => named(name).map(Self::Claim),
            Some(("body", name)) => named(name).map(Self::Body),
            Some(("attr", name)) => {
                let name = named(name)?;
                if attributes::is_reserved(&name) {
                    return Err(format!("`{name}` is set by the front end; give the attribute another name"));
                }
                Ok(Self::Attribute(name))
            }
            Some(("const", name)) => named(name).map(Self::Constant),
            Some(("net", lengths)) => {
                let parsed = lengths.split_once('/').and_then(|(v4, v6)| Some((v4.parse().ok()?, v6.parse().ok()?)));
                let (v4, v6) = parsed.ok_or_else(|| {
                    format!("`{text}` is not understood; `net:24/56` counts a /24 of IPv4 and a /56 of IPv6 as one")
                })?;
                IpPrefixes::new(v4, v6).map(Self::Net)
            }
            Some((kind, _)) => Err(format!("there is no source `{kind}:`")),
        }
    }
}

impl IdentityConfig {
    /// The address of the client, according to the trusted proxies.
    pub(crate) fn client(&self, view: &RequestView<'_, '_>) -> Option<IpAddr> {
        let peer = ip::parse(view.request.attribute(attributes::IP)?);
        forwarded::client_ip(peer, view.attribute(&self.forwarded), &self.trust, &self.forwarded_by)
    }
}

/// The value without surrounding space; `None` if it is empty.
fn non_empty(value: &str) -> Option<&str> {
    Some(value.trim()).filter(|value| !value.is_empty())
}
