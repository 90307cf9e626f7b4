//! `Provenance`: how far a value of a request can be trusted to identify its sender, and `AuthenticatedNames`: the sources
//! that `identify.authenticated` lists.

use std::collections::HashSet;

use smol_str::{SmolStr, format_smolstr};
use tidegate::attributes;

use crate::identity::Source;

/// Where a value comes from, and who could have chosen it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Provenance {
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
pub(crate) struct AuthenticatedNames(HashSet<SmolStr>);

impl AuthenticatedNames {
    /// From the names in the file.
    pub(crate) fn new<'n>(names: impl Iterator<Item = &'n str>) -> Self {
        Self(names.map(|name| SmolStr::new(name.to_ascii_lowercase())).collect())
    }

    /// Whether `name` is listed, regardless of case.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.0.contains(name.to_ascii_lowercase().as_str())
    }

    /// The provenance of a source's values.
    pub(crate) fn provenance(&self, source: &Source) -> Provenance {
        let verified = |is: bool| if is { Provenance::Verified } else { Provenance::Forgeable };
        match source {
            Source::Ip | Source::Net(_) => Provenance::Address,
            // Unverified claims are an error, so a loaded file has none.
            Source::Claim(_) => Provenance::Verified,
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
