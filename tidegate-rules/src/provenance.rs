//! `Provenance`: how far a value of a request can be trusted to identify its sender, and `AuthenticatedNames`: the sources
//! that `identify.authenticated` lists.

use std::collections::HashSet;

use smol_str::{SmolStr, format_smolstr};
use tidegate::attributes;

use crate::identity::Source;

/// Where a value comes from, and who could have chosen it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provenance {
    /// Set or verified by a proxy in front of us, or set by the application.
    Verified,
    /// A network address: it cannot be forged, but one client may have many.
    Address,
    /// Sent by the client, which can send any value.
    Forgeable,
    /// A field of the body: the client chooses which account it names.
    BodyField,
    /// Does not identify a sender: a path, a constant.
    NoIdentity,
}

/// Names of values that a client cannot forge, in lower case: headers by name, others as `query:key`, `cookie:session`,
/// `host`.
#[derive(Clone, Debug, Default)]
pub struct AuthenticatedNames {
    names: HashSet<SmolStr>,
    /// Whether the header with the token is one of them. Tokens are never verified here, so its claims are verified only then.
    has_verified_token: bool,
    /// The header with the token, in lower case.
    token_header: SmolStr,
}

impl AuthenticatedNames {
    /// From the names in the file, and the header with the token.
    pub(crate) fn new<'n>(names: impl Iterator<Item = &'n str>, token_header: &str) -> Self {
        let names: HashSet<SmolStr> = names.map(|name| SmolStr::new(name.to_ascii_lowercase())).collect();
        let token_header = SmolStr::new(token_header.to_ascii_lowercase());
        let has_verified_token = names.contains(&token_header);
        Self { names, has_verified_token, token_header }
    }

    /// Whether the file states that the token is verified in front of Tidegate.
    pub const fn has_verified_token(&self) -> bool {
        self.has_verified_token
    }

    /// Whether the values of a header are credentials: those of `Authorization`, of `Proxy-Authorization`, or the token.
    pub(crate) fn has_credentials(&self, header: &str) -> bool {
        attributes::is_credential_header(header) || header.eq_ignore_ascii_case(&self.token_header)
    }

    /// Whether `name` is listed, regardless of case.
    pub fn contains(&self, name: &str) -> bool {
        self.names.contains(name.to_ascii_lowercase().as_str())
    }

    /// Whether a client cannot choose the tenant that a source names: it is listed, the application sets it, or it is always the same.
    pub fn authenticates_tenant(&self, source: &Source) -> bool {
        match source {
            Source::Host => self.contains(attributes::HOST),
            Source::Action | Source::Constant(_) => true,
            _ => self.provenance(source) == Provenance::Verified,
        }
    }

    /// The provenance of a source's values.
    pub fn provenance(&self, source: &Source) -> Provenance {
        let verified = |is: bool| if is { Provenance::Verified } else { Provenance::Forgeable };
        match source {
            Source::Ip | Source::Net(_) => Provenance::Address,
            Source::Claim(_) => verified(self.has_verified_token),
            Source::Path | Source::Host | Source::Action | Source::Constant(_) => Provenance::NoIdentity,
            Source::Attribute(name) if name == attributes::METHOD => Provenance::NoIdentity,
            // Attributes other than headers are set by the application.
            Source::Attribute(name) => {
                attributes::header_name(name).map_or(Provenance::Verified, |name| verified(self.contains(name)))
            }
            Source::Query(name) => verified(self.contains(&format_smolstr!("query:{name}"))),
            Source::Cookie(name) => {
                verified(self.contains("cookie") || self.contains(&format_smolstr!("cookie:{name}")))
            }
            Source::Body(_) => Provenance::BodyField,
        }
    }
}

/// The help on how to declare sources as authenticated.
pub fn how_to_authenticate<'s>(sources: impl IntoIterator<Item = &'s Source>) -> String {
    let listed = |source: &Source| match source {
        Source::Attribute(name) => Some(attributes::header_name(name).unwrap_or(name).to_owned()),
        Source::Query(name) => Some(format!("query:{name}")),
        Source::Cookie(name) => Some(format!("cookie:{name}")),
        Source::Host => Some(attributes::HOST.to_owned()),
        _ => None,
    };
    let Some(listed) = sources.into_iter().map(listed).collect::<Option<Vec<_>>>() else {
        return "let a proxy verify it and send it as a header".to_owned();
    };
    let listed = listed.join(", ");
    format!("if a proxy sets or verifies it, declare it: `authenticated: [{listed}]` below `identify`")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with such a claim cannot be loaded, so only here can it be shown that it would not count as authenticated.
    #[test]
    fn a_claim_that_is_not_stated_as_verified_is_forgeable() {
        let claim = Source::Claim("sub".into());
        let provenance =
            |names: &[&str], token: &str| AuthenticatedNames::new(names.iter().copied(), token).provenance(&claim);
        assert_eq!(provenance(&[], "authorization"), Provenance::Forgeable);
        assert_eq!(provenance(&["authorization", "claim:sub", "sub"], "x-token"), Provenance::Forgeable);
        assert_eq!(provenance(&["Authorization"], "authorization"), Provenance::Verified);
        assert_eq!(provenance(&["x-token"], "X-Token"), Provenance::Verified);
        assert_eq!(AuthenticatedNames::default().provenance(&claim), Provenance::Forgeable);
    }
}
