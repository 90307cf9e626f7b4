//! `StoreCall`: a method of the store, as metrics name it.

use prometheus_client::encoding::EncodeLabelValue;

/// A method of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum StoreCall {
    Decide,
    Peek,
    Adjust,
    Forget,
    Ping,
}

impl StoreCall {
    /// Number of variants.
    pub(crate) const COUNT: usize = Self::Ping as usize + 1;

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Decide => "decide",
            Self::Peek => "peek",
            Self::Adjust => "adjust",
            Self::Forget => "forget",
            Self::Ping => "ping",
        }
    }
}
