//! `Identity`: a named list of sources of which the first value identifies the sender of a request. Values of different
//! sources are different subjects; requests without any value share one subject, so none is exempt.

use std::borrow::Cow;
use std::net::IpAddr;

use smol_str::SmolStr;
use tidegate::attributes::{self, NormalForm, NormalForms, names_account};
use tidegate::spi::RequestProblemKind;

use crate::forwarded::{self, ForwardedHeader, ProxyTrust};
use crate::ip::{self, IpPrefixes};
use crate::provenance::{AuthenticatedNames, Provenance};
use crate::query::trimmed;
use crate::repeated::RepeatedPolicies;
use crate::request_view::RequestView;

/// Where a value is read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
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
pub struct Identity {
    pub name: SmolStr,
    pub sources: Vec<IdentitySource>,
    /// An attribute of the application that overrides the sources.
    pub application_attribute: Option<SmolStr>,
    /// The normal forms of that attribute: those that the file states for the first source.
    application_forms: NormalForms,
}

/// A source of an identity, as the file has it.
#[derive(Clone, Debug)]
pub struct IdentitySource {
    pub source: Source,
    /// Its text, without normal forms, which is the kind of its values.
    pub kind: SmolStr,
    pub provenance: Provenance,
    /// The normal forms of its values.
    pub forms: NormalForms,
    /// Those that the file states.
    pub stated_forms: Option<NormalForms>,
}

/// The value of an identity, with its kind.
#[derive(Clone, Debug)]
pub struct IdentityValue<'q> {
    pub kind: SmolStr,
    pub value: Cow<'q, str>,
    /// Whether it belongs to a tenant: users and keys do, addresses and constants do not.
    pub belongs_to_tenant: bool,
    /// Its provenance.
    pub provenance: Provenance,
    /// Further values of a cookie that came more than once. Each counts as a subject of its own.
    pub others: Vec<String>,
}

/// The settings of `identify` that sources are read with.
#[derive(Clone, Debug)]
pub struct IdentityConfig {
    pub trust: ProxyTrust,
    pub forwarded_by: ForwardedHeader,
    /// The attribute of the header in which proxies send the client's address.
    pub forwarded: SmolStr,
    pub prefixes: IpPrefixes,
    /// The attribute of the header with the token.
    pub token: SmolStr,
    /// Which value counts if a source comes more than once.
    pub repeated: RepeatedPolicies,
}

impl Identity {
    /// An identity from its sources.
    pub(crate) fn new(name: SmolStr, sources: Vec<IdentitySource>) -> Self {
        let application_forms = sources.first().and_then(|first| first.stated_forms.clone()).unwrap_or_default();
        Self { name, sources, application_attribute: None, application_forms }
    }

    /// The sources alone.
    pub fn each_source(&self) -> impl Iterator<Item = &Source> {
        self.sources.iter().map(|one| &one.source)
    }

    /// Lets an attribute of the same name, set by the application, override the sources.
    pub(crate) fn or_application_attribute(self) -> Self {
        Self { application_attribute: Some(self.name.clone()), ..self }
    }

    /// The same without the sources by which a client can choose its tenant.
    pub(crate) fn authenticated_only(&self, authenticated: &AuthenticatedNames) -> Self {
        let is_kept = |one: &&IdentitySource| authenticated.authenticates_tenant(&one.source);
        Self { sources: self.sources.iter().filter(is_kept).cloned().collect(), ..self.clone() }
    }

    /// The same with further normal forms for every value.
    pub(crate) fn with_forms(mut self, further: &NormalForms) -> Self {
        let own = self.sources.iter_mut().map(|one| &mut one.forms);
        for forms in own.chain([&mut self.application_forms]) {
            *forms = if further.is_empty() { NormalForms::default() } else { std::mem::take(forms).then(further) };
        }
        for one in &mut self.sources {
            one.stated_forms.get_or_insert_default();
        }
        self
    }

    /// The same in a rule against guessing: accounts without a stated form are one in all letters.
    pub(crate) fn with_account_forms(mut self) -> Self {
        let is_account = names_account(&self.name);
        for one in &mut self.sources {
            let has_form = one.stated_forms.is_some() || !one.forms.is_empty() || !one.source.belongs_to_tenant();
            if !has_form && (is_account || names_account(&one.kind)) {
                one.forms = NormalForms::of_account();
            }
        }
        if is_account && self.sources.first().is_none_or(|first| first.stated_forms.is_none()) {
            self.application_forms = NormalForms::of_account();
        }
        self
    }

    /// Whether each value of `fine` lies within one value of this identity.
    pub fn covers(&self, fine: &Self) -> bool {
        self.application_attribute == fine.application_attribute
            && self.each_source().eq(fine.each_source())
            && (self.each_form().eq(fine.each_form()) || fine.each_form().all(NormalForms::is_empty))
    }

    /// The normal forms of each source, and those of the attribute of the application.
    pub(crate) fn each_form(&self) -> impl Iterator<Item = &NormalForms> {
        self.sources.iter().map(|one| &one.forms).chain([&self.application_forms])
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
        if let Some(value) = self.application_value(view) {
            return Some(IdentityValue {
                kind: self.name.clone(),
                value,
                belongs_to_tenant: true,
                provenance: Provenance::Verified,
                others: Vec::new(),
            });
        }
        self.sources.iter().find_map(|one| {
            let (value, others) = read(&one.source)?;
            if one.forms.is_ambiguous(&value) {
                view.refuse(RequestProblemKind::Ambiguous, &one.kind);
            }
            let (value, others) = normalize(&one.forms, value, others)?;
            // A single source needs no kind of its own, and the application may set the value itself.
            let kind = if self.sources.len() == 1 { &self.name } else { &one.kind };
            Some(IdentityValue {
                kind: kind.clone(),
                value,
                belongs_to_tenant: one.source.belongs_to_tenant(),
                provenance: one.provenance,
                others,
            })
        })
    }

    /// The value that the application sets.
    fn application_value<'q>(&self, view: &RequestView<'_, 'q>) -> Option<Cow<'q, str>> {
        let value = non_empty(view.request.attribute(self.application_attribute.as_ref()?)?)?;
        Some(self.application_forms.apply(value.into())).filter(|value| !value.is_empty())
    }

    /// A value that the file names, in the normal form of the first source.
    pub(crate) fn normal_name(&self, name: &str) -> SmolStr {
        SmolStr::new(self.application_forms.apply(name.into()))
    }

    /// The claim that the value comes from, if it comes from one.
    pub fn claim_in_use(&self, view: &RequestView<'_, '_>) -> Option<&SmolStr> {
        if self.application_value(view).is_some() {
            return None;
        }
        let has_value =
            |one: &&IdentitySource| one.source.read(view).is_some_and(|value| !one.forms.apply(value).is_empty());
        let used = self.sources.iter().find(has_value)?;
        matches!(used.source, Source::Claim(_)).then_some(&used.kind)
    }

    /// The provenance if there is no value: forgeable, unless no source identifies a sender.
    pub(crate) fn provenance_if_missing(&self) -> Provenance {
        let identifies_nobody =
            !self.sources.is_empty() && self.sources.iter().all(|one| one.provenance == Provenance::NoIdentity);
        if identifies_nobody { Provenance::NoIdentity } else { Provenance::Forgeable }
    }

    /// Whether a value may belong to a tenant.
    pub(crate) fn may_belong_to_tenant(&self) -> bool {
        self.application_attribute.is_some() || self.each_source().any(Source::belongs_to_tenant)
    }

    /// Appends the attributes that the identity reads.
    pub(crate) fn reads(&self, identity_config: &IdentityConfig, names: &mut Vec<SmolStr>) {
        names.extend(self.application_attribute.clone());
        for source in self.each_source() {
            source.reads(identity_config, names);
        }
    }
}

impl IdentitySource {
    /// A source with the normal forms that the file states.
    pub(crate) fn new(
        source: Source,
        kind: &str,
        stated_forms: Option<NormalForms>,
        authenticated: &AuthenticatedNames,
    ) -> Self {
        let provenance = authenticated.provenance(&source);
        let forms = source.with_credentials(stated_forms.clone(), authenticated);
        let forms = if provenance == Provenance::Verified { forms.of_verified() } else { forms };
        Self { source, kind: kind.into(), provenance, forms, stated_forms }
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
    pub fn belongs_to_tenant(&self) -> bool {
        match self {
            Self::Ip | Self::Net(_) | Self::Path | Self::Host | Self::Action | Self::Constant(_) => false,
            Self::Attribute(name) => name != attributes::METHOD,
            Self::Query(_) | Self::Cookie(_) | Self::Claim(_) | Self::Body(_) => true,
        }
    }

    /// The normal forms of its values: those that the file states, after that of credentials.
    fn with_credentials(&self, stated: Option<NormalForms>, authenticated: &AuthenticatedNames) -> NormalForms {
        let header = if let Self::Attribute(name) = self { attributes::header_name(name) } else { None };
        let has_credentials = header.is_some_and(|header| authenticated.has_credentials(header));
        match stated {
            None if has_credentials => NormalForm::Credentials.into(),
            Some(forms) if has_credentials && !forms.is_empty() && !forms.decodes_credentials() => {
                NormalForms::from(NormalForm::Credentials).then(&forms)
            }
            stated => stated.unwrap_or_default(),
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
    pub fn parse(text: &str) -> Result<Self, String> {
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

/// The values in their normal forms, each once; `None` if there is none that is not empty.
fn normalize<'q>(forms: &NormalForms, value: Cow<'q, str>, others: Vec<String>) -> Option<(Cow<'q, str>, Vec<String>)> {
    if forms.is_empty() {
        return Some((value, others));
    }
    let values = std::iter::once(value).chain(others.into_iter().map(Cow::Owned));
    let mut values = values.map(|value| forms.apply(value)).filter(|value| !value.is_empty());
    let first = values.next()?;
    let mut others: Vec<String> = Vec::new();
    for other in values {
        if other != first && !others.iter().any(|known| *known == other) {
            others.push(other.into_owned());
        }
    }
    Some((first, others))
}

/// The value without surrounding space; `None` if it is empty.
fn non_empty(value: &str) -> Option<&str> {
    Some(value.trim()).filter(|value| !value.is_empty())
}
