//! `Identities`: who a request is from. Sources are read in order, kinds are kept apart, and whoever has no identity
//! shares one: nobody is exempt.

use std::borrow::Cow;
use std::net::IpAddr;

use smol_str::SmolStr;
use tidegate::{Request, attributes};

use crate::facts::Facts;
use crate::forwarded::{self, ForwardedBy, Trust};
use crate::ip::{self, Prefixes};
use crate::query;
use crate::word::{Authenticated, Word};

/// Where a value is read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The client's address, as far as its prefix counts.
    Ip,
    /// The client's network, with prefixes of its own.
    Net(Prefixes),
    /// The attribute with this name, as a door brings it: a header, the method, or what the application has set.
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

/// A named list of sources, of which the first that is present counts.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) name: SmolStr,
    pub(crate) sources: Vec<Source>,
    /// How the sources are written: the kind of a subject that was found there.
    pub(crate) kinds: Vec<SmolStr>,
    /// Who stands behind each of them.
    pub(crate) words: Vec<Word>,
    /// An attribute that says it all, which only the application can set.
    pub(crate) given: Option<SmolStr>,
}

/// What was found: its kind, and whose it is.
#[derive(Clone, Debug)]
pub(crate) struct Found<'q> {
    pub(crate) kind: SmolStr,
    pub(crate) value: Cow<'q, str>,
    /// Whether it belongs to a tenant, as users and keys do, and addresses and constants do not.
    pub(crate) of_tenant: bool,
    /// Who stands behind it.
    pub(crate) word: Word,
}

/// How sources are read.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    pub(crate) trust: Trust,
    pub(crate) forwarded_by: ForwardedBy,
    /// The attribute with the header in which proxies tell the client's address.
    pub(crate) forwarded: SmolStr,
    pub(crate) prefixes: Prefixes,
    /// The attribute with the token.
    pub(crate) token: SmolStr,
}

impl Identity {
    /// A name for these sources, each with how it is written.
    pub(crate) fn new(name: SmolStr, sources: Vec<(Source, SmolStr)>, authenticated: &Authenticated) -> Self {
        let words = sources.iter().map(|(source, _)| authenticated.word(source)).collect();
        let (sources, kinds) = sources.into_iter().unzip();
        Self { name, sources, kinds, words, given: None }
    }

    /// The same, unless the application gives it under its name.
    pub(crate) fn or_given(self) -> Self {
        Self { given: Some(self.name.clone()), ..self }
    }

    /// Who the request is from, or nobody that is known.
    pub(crate) fn find<'q>(&self, facts: &Facts<'_, 'q>) -> Option<Found<'q>> {
        if let Some(value) = self.given.as_ref().and_then(|name| present(facts.request.attribute(name)?)) {
            return Some(Found { kind: self.name.clone(), value: value.into(), of_tenant: true, word: Word::Vouched });
        }
        let found = |((source, kind), word): ((&Source, &SmolStr), &Word)| {
            let value = source.read(facts)?;
            // With a single source there is nothing to tell apart, and the application may give the value itself.
            let kind = if self.sources.len() == 1 { &self.name } else { kind };
            Some(Found { kind: kind.clone(), value, of_tenant: source.is_of_tenant(), word: *word })
        };
        self.sources.iter().zip(&self.kinds).zip(&self.words).find_map(found)
    }

    /// Who stands behind it where it was not found: whoever does not say who it is, unless it was never about that.
    pub(crate) fn missing(&self) -> Word {
        let about_nobody = !self.words.is_empty() && self.words.iter().all(|word| *word == Word::Nobody);
        if about_nobody { Word::Nobody } else { Word::Anyone }
    }

    /// Whether any of its sources belongs to a tenant.
    pub(crate) fn may_be_of_tenant(&self) -> bool {
        self.given.is_some() || self.sources.iter().any(Source::is_of_tenant)
    }

    /// The attributes that it reads.
    pub(crate) fn reads(&self, reading: &Reading, names: &mut Vec<SmolStr>) {
        names.extend(self.given.clone());
        for source in &self.sources {
            source.reads(reading, names);
        }
    }
}

impl Source {
    /// The value, if it is there; an empty one is not.
    pub(crate) fn read<'q>(&self, facts: &Facts<'_, 'q>) -> Option<Cow<'q, str>> {
        let request = facts.request;
        let owned = |value: String| present(&value).map(|value| Cow::Owned(value.to_owned()));
        match self {
            Self::Ip => Some(facts.matching.reading.prefixes.subject(facts.client()?).into()),
            Self::Net(prefixes) => Some(prefixes.subject(facts.client()?).into()),
            Self::Attribute(name) => present(request.attribute(name)?).map(Cow::Borrowed),
            Self::Query(name) => owned(query::parameter(request.attribute(attributes::QUERY)?, name)?),
            Self::Cookie(name) => owned(query::cookie(request.attribute(attributes::COOKIE_HEADER)?, name)?),
            Self::Claim(name) => owned(facts.claim(name)?),
            Self::Body(name) => owned(facts.body_field(name)?),
            Self::Path => facts.path().map(|path| Cow::Owned(path.to_owned())),
            Self::Host => owned(facts.host()?.to_owned()),
            Self::Action => present(request.action()).map(Cow::Borrowed),
            Self::Constant(text) => Some(Cow::Owned(text.to_string())),
        }
    }

    /// Whether a subject found there belongs to a tenant.
    pub(crate) fn is_of_tenant(&self) -> bool {
        match self {
            Self::Ip | Self::Net(_) | Self::Path | Self::Host | Self::Action | Self::Constant(_) => false,
            Self::Attribute(name) => name != attributes::METHOD,
            Self::Query(_) | Self::Cookie(_) | Self::Claim(_) | Self::Body(_) => true,
        }
    }

    pub(crate) fn reads(&self, reading: &Reading, names: &mut Vec<SmolStr>) {
        match self {
            Self::Ip | Self::Net(_) => names.extend([attributes::IP.into(), reading.forwarded.clone()]),
            Self::Attribute(name) => names.push(name.clone()),
            Self::Query(_) => names.push(attributes::QUERY.into()),
            Self::Cookie(_) => names.push(attributes::COOKIE_HEADER.into()),
            Self::Claim(_) => names.push(reading.token.clone()),
            Self::Body(_) => names.push(attributes::BODY.into()),
            Self::Path => names.push(attributes::PATH.into()),
            Self::Host => names.push(attributes::HOST.into()),
            Self::Action | Self::Constant(_) => {}
        }
    }

    /// A source as it is written, or what is wrong with it.
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
                    return Err(format!(
                        "`{name}` is the door's own name for what it sees; call the attribute otherwise"
                    ));
                }
                Ok(Self::Attribute(name))
            }
            Some(("const", name)) => named(name).map(Self::Constant),
            Some(("net", lengths)) => {
                let parsed = lengths.split_once('/').and_then(|(v4, v6)| Some((v4.parse().ok()?, v6.parse().ok()?)));
                let (v4, v6) = parsed.ok_or_else(|| {
                    format!("`{text}` is not understood; `net:24/56` counts a /24 of IPv4 and a /56 of IPv6 as one")
                })?;
                Prefixes::new(v4, v6).map(Self::Net)
            }
            Some((kind, _)) => Err(format!("there is no source `{kind}:`")),
        }
    }
}

impl Reading {
    /// The address of the client, as far as those who tell it are trusted.
    pub(crate) fn client(&self, request: &Request<'_>) -> Option<IpAddr> {
        let peer = ip::parse(request.attribute(attributes::IP)?);
        forwarded::client(peer, request.attribute(&self.forwarded), &self.trust, &self.forwarded_by)
    }
}

/// A value without surrounding space; an empty one is as good as none.
fn present(value: &str) -> Option<&str> {
    Some(value.trim()).filter(|value| !value.is_empty())
}
