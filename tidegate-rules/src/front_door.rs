//! `FrontDoor`: what each front end can have of a request. It knows no rules.

use std::fmt;
use std::str::FromStr;

use tidegate::attributes;

use crate::identity::{Identity, Source};

/// A way in which requests reach the rules. The names are those of logs and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FrontDoor {
    /// The reverse proxy of `tidegate serve`. It has the whole request and nothing else: no attributes of an application, no action.
    Gateway,
    /// `/v1/forward-auth`. It has what the gateway has, without the body and its length, which proxies do not send.
    ForwardAuth,
    /// `/v1/check`. It has what the caller sends.
    Check,
    /// The tower layer. It has the request, and what the program sets.
    Tower,
    /// Envoy's rate limit service. It has the entries of a descriptor.
    Envoy,
    /// A program that calls a `Limiter` itself. It has what the program sets.
    Library,
}

/// Headers that the gateway removes before it decides, in lower case.
const REMOVED_BY_GATEWAY: [&str; 10] = [
    "connection",
    "http2-settings",
    "keep-alive",
    "proxy",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "transfer-encoding",
    "x-original-url",
    "x-rewrite-url",
];

impl FrontDoor {
    /// Every front end.
    pub const ALL: [Self; 6] = [Self::Gateway, Self::ForwardAuth, Self::Check, Self::Tower, Self::Envoy, Self::Library];

    /// The name in logs, metrics and flags.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::ForwardAuth => "forward-auth",
            Self::Check => "check",
            Self::Tower => "tower",
            Self::Envoy => "envoy",
            Self::Library => "library",
        }
    }

    /// The name in a sentence.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Gateway => "the gateway",
            Self::ForwardAuth => "forward-auth",
            Self::Check => "the check API",
            Self::Tower => "the tower layer",
            Self::Envoy => "Envoy's service",
            Self::Library => "the library",
        }
    }

    /// Whether its callers can set attributes and actions.
    pub const fn has_application(self) -> bool {
        !matches!(self, Self::Gateway | Self::ForwardAuth)
    }

    /// Whether it knows the size of a body, or its callers can state it. A proxy that asks forward-auth sends no body, and no length.
    pub fn has_body_size(self) -> bool {
        self != Self::ForwardAuth
    }

    /// Whether it learns when a request ends, and so can hold a slot until then. Callers of the check API say so themselves.
    pub const fn learns_of_ends(self) -> bool {
        !matches!(self, Self::ForwardAuth | Self::Envoy)
    }

    /// Whether a request through this door can have a value of `source`.
    pub fn has(self, source: &Source) -> bool {
        match source {
            Source::Action => self.has_application(),
            Source::Body(_) => self != Self::ForwardAuth,
            Source::Attribute(name) => match attributes::header_name(name) {
                Some(header) => self.has_header(header),
                None => name == attributes::METHOD || self.has_application(),
            },
            _ => true,
        }
    }

    /// Whether a request through this door can have a value of the identity.
    pub fn has_identity(self, identity: &Identity) -> bool {
        (identity.application_attribute.is_some() && self.has_application())
            || identity.each_source().any(|source| self.has(source))
    }

    fn has_header(self, name: &str) -> bool {
        match self {
            Self::Gateway => !REMOVED_BY_GATEWAY.contains(&name),
            // A call with the length of a body would have to send the body.
            Self::ForwardAuth => attributes::header_name(attributes::CONTENT_LENGTH_HEADER) != Some(name),
            Self::Check | Self::Tower | Self::Envoy | Self::Library => true,
        }
    }
}

impl fmt::Display for FrontDoor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for FrontDoor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|door| door.as_str() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::as_str).join(", ");
            format!("this is not a front end; the front ends are {names}")
        })
    }
}
