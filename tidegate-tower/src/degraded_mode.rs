//! `DegradedMode`: tells the application that a request was admitted without the store.

use tidegate::StoreErrorKind;

/// The store failed, and the rules admit the request without it: an extension of the request, so that the application can
/// reduce its service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DegradedMode {
    /// How the store failed.
    pub reason: StoreErrorKind,
}

impl DegradedMode {
    /// The store failed in this way.
    pub const fn new(reason: StoreErrorKind) -> Self {
        Self { reason }
    }
}
