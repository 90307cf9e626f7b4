//! `ConfigPart`: what a server reads from files, and again when they change; and why the last attempt to read each part failed.

use std::fmt;

use tidegate::sync::Mutex;

/// What is read from files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConfigPart {
    Rules,
    Envoy,
    Certificates,
    Tokens,
}

/// Why the last attempt to read each part failed.
#[derive(Debug, Default)]
pub(crate) struct ConfigPartErrors(Mutex<[Option<String>; 4]>);

impl ConfigPartErrors {
    /// Stores the reason why a part could not be read, or clears it.
    pub(crate) fn set(&self, part: ConfigPart, error: Option<String>) {
        self.0.lock()[part as usize] = error;
    }

    /// The reason why a part could not be read.
    pub(crate) fn get(&self, part: ConfigPart) -> Option<String> {
        self.0.lock()[part as usize].clone()
    }
}

impl fmt::Display for ConfigPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rules => "rules",
            Self::Envoy => "Envoy configuration",
            Self::Certificates => "certificates",
            Self::Tokens => "admin tokens",
        })
    }
}
