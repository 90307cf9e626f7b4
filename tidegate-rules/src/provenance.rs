//! `Provenance`: who stands behind what a source says about a request, and `AuthenticatedNames`, what the file says about that. It knows
//! sources and nothing of rules.

use std::collections::HashSet;

use smol_str::{SmolStr, format_smolstr};
use tidegate::attributes;

use crate::identity::Source;

/// Who stands behind a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Provenance {
    /// Somebody in front of us who has set or verified it, or the application.
    Verified,
    /// The network: nobody chooses an address freely, but many have many.
    Address,
    /// Whoever sends it: any client can send what it likes.
    Forgeable,
    /// Whoever sends it, about somebody else: a field of the body, which names an account and may be anything.
    BodyField,
    /// Nobody: it does not say who it is. A path, a constant.
    NoIdentity,
}

/// What a client cannot forge, in lower case: headers by their name, others as `query:key`, `cookie:session`, `host`.
#[derive(Clone, Debug, Default)]
pub(crate) struct AuthenticatedNames(HashSet<SmolStr>);

impl AuthenticatedNames {
    /// The names as they are written.
    pub(crate) fn new<'n>(names: impl Iterator<Item = &'n str>) -> Self {
        Self(names.map(|name| SmolStr::new(name.to_ascii_lowercase())).collect())
    }

    /// Whether something is among them, in whichever case.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.0.contains(name.to_ascii_lowercase().as_str())
    }

    /// Who stands behind what a source says.
    pub(crate) fn provenance(&self, source: &Source) -> Provenance {
        let verified = |is: bool| if is { Provenance::Verified } else { Provenance::Forgeable };
        match source {
            Source::Ip | Source::Net(_) => Provenance::Address,
            // An unverified one is an error, so it never comes to that.
            Source::Claim(_) => Provenance::Verified,
            Source::Path | Source::Host | Source::Action | Source::Constant(_) => Provenance::NoIdentity,
            Source::Attribute(name) if name == attributes::METHOD => Provenance::NoIdentity,
            // What is no header is set by the application.
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
