//! The section `identify`: settings, and any further names with their sources.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

use crate::read::{OneOrMany, Spanned};

/// Where an identity is read from: the first source that is present.
pub(crate) type SourcesSpec = OneOrMany<Spanned<String>>;

/// Who the client, the user and the tenant are. Further names may be given, for `per` to use. A source is `ip`,
/// `net:24/56`, `header:NAME`, `query:NAME`, `cookie:NAME`, `claim:NAME`, `body:FIELD`, `attr:NAME`, `path`, `host`,
/// `method`, `action` or `const:TEXT`, with any of the normal forms `trim`, `lower`, `nfkc`, `email` and `credentials` behind it
/// (`body:account | trim | lower`), or `exact`.
#[derive(Debug, Default, JsonSchema)]
#[schemars(rename = "Identify")]
pub(crate) struct IdentifySpec {
    /// Headers that a proxy sets or verifies, so that a client cannot forge them. With the header of the token, this states that
    /// its claims are verified in front of Tidegate, which does not verify tokens.
    #[schemars(default)]
    pub(crate) authenticated: OneOrMany<Spanned<String>>,
    /// Networks of the proxies that are trusted to send the client's address.
    #[schemars(default)]
    pub(crate) trusted_proxies: OneOrMany<Spanned<String>>,
    /// Instead: the number of trusted proxies, the one that connects to us included.
    pub(crate) trusted_hops: Option<Spanned<u8>>,
    /// The header with the client's address: `x-forwarded-for` (the default), `forwarded`, or one such as `cf-connecting-ip`.
    pub(crate) forwarded: Option<Spanned<String>>,
    /// The prefix length that makes an IPv4 subject. 32 if missing.
    pub(crate) ipv4_prefix: Option<Spanned<u8>>,
    /// The prefix length that makes an IPv6 subject. 64 if missing, since one subscriber has at least a /64.
    pub(crate) ipv6_prefix: Option<Spanned<u8>>,
    /// The header with the token for `claim:` sources. `authorization` if missing. List it below `authenticated` once a proxy or
    /// the application in front verifies the token: Tidegate does not.
    pub(crate) token: Option<Spanned<String>>,
    /// Which value counts if a header or a query parameter comes more than once. `reject` if missing.
    pub(crate) repeated: Option<RepeatedSpec>,
    /// What the gateway does with escaped slashes in paths (`%2F`): `both` (the default) forwards them and counts the path as
    /// written and as decoded, `reject` answers 400, `decode` forwards the decoded path.
    pub(crate) escaped_slashes: Option<Spanned<EscapedSlashesSpec>>,
    #[schemars(flatten, with = "BTreeMap<String, SourcesSpec>")]
    pub(crate) names: Vec<(Spanned<String>, SourcesSpec)>,
}

/// Which value counts if a header or a query parameter comes more than once: one word for all, or one for each identity or source.
#[derive(Debug, serde::Deserialize, JsonSchema)]
#[serde(rename = "$shape", rename_all = "lowercase")]
#[schemars(rename = "Repeated", untagged)]
pub(crate) enum RepeatedSpec {
    /// For all identities.
    Text(Spanned<RepeatedName>),
    /// By the name of an identity, or by a source such as `header:x-api-key`.
    Map(BTreeMap<String, Spanned<RepeatedName>>),
}

/// Which of several values counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "RepeatedWord")]
pub(crate) enum RepeatedName {
    /// None: the request is refused with 400. Of a cookie, each value counts.
    Reject,
    /// The first.
    First,
    /// The last.
    Last,
}

/// What the gateway does with escaped slashes in paths.
#[derive(Clone, Copy, Debug, serde::Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "EscapedSlashes")]
pub(crate) enum EscapedSlashesSpec {
    /// It forwards them as written. The path counts as written and as decoded.
    Both,
    /// It refuses the request with 400.
    Reject,
    /// It decodes them, and forwards the decoded path.
    Decode,
}

impl<'de> Deserialize<'de> for IdentifySpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct IdentifyVisitor;
        impl<'de> Visitor<'de> for IdentifyVisitor {
            type Value = IdentifySpec;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("identities")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<IdentifySpec, A::Error> {
                let mut identify = IdentifySpec::default();
                while let Some(key) = entries.next_key::<Spanned<String>>()? {
                    match key.as_str() {
                        "authenticated" => identify.authenticated = entries.next_value()?,
                        "trusted_proxies" => identify.trusted_proxies = entries.next_value()?,
                        "trusted_hops" => identify.trusted_hops = Some(entries.next_value()?),
                        "forwarded" => identify.forwarded = Some(entries.next_value()?),
                        "ipv4_prefix" => identify.ipv4_prefix = Some(entries.next_value()?),
                        "ipv6_prefix" => identify.ipv6_prefix = Some(entries.next_value()?),
                        "token" => identify.token = Some(entries.next_value()?),
                        "repeated" => identify.repeated = Some(entries.next_value()?),
                        "escaped_slashes" => identify.escaped_slashes = Some(entries.next_value()?),
                        _ => identify.names.push((key, entries.next_value()?)),
                    }
                }
                Ok(identify)
            }
        }
        deserializer.deserialize_map(IdentifyVisitor)
    }
}
