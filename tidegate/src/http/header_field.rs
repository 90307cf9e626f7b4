//! `HeaderField`: the header fields about limits.

/// A header field of a [`HeaderPolicy`](crate::http::HeaderPolicy).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HeaderField {
    /// `RateLimit-Policy`: the limits.
    Policy,
    /// `RateLimit`: what remains of each limit.
    RateLimit,
    /// `X-RateLimit-Limit`.
    XLimit,
    /// `X-RateLimit-Remaining`.
    XRemaining,
    /// `X-RateLimit-Reset`.
    XReset,
    /// `RateLimit-Limit`, of the older set of three.
    Limit,
    /// `RateLimit-Remaining`.
    Remaining,
    /// `RateLimit-Reset`.
    Reset,
    /// `Retry-After`.
    RetryAfter,
    /// `retry-after-ms`.
    RetryAfterMs,
    /// `X-Tidegate-Grace`: the request passed in the grace of a quota.
    Grace,
}

impl HeaderField {
    /// Every field, in the order of responses. The index of a field is its number (`field as usize`).
    pub const ALL: [Self; 11] = [
        Self::Policy,
        Self::RateLimit,
        Self::XLimit,
        Self::XRemaining,
        Self::XReset,
        Self::Limit,
        Self::Remaining,
        Self::Reset,
        Self::RetryAfter,
        Self::RetryAfterMs,
        Self::Grace,
    ];

    /// The name, in lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Policy => "ratelimit-policy",
            Self::RateLimit => "ratelimit",
            Self::XLimit => "x-ratelimit-limit",
            Self::XRemaining => "x-ratelimit-remaining",
            Self::XReset => "x-ratelimit-reset",
            Self::Limit => "ratelimit-limit",
            Self::Remaining => "ratelimit-remaining",
            Self::Reset => "ratelimit-reset",
            Self::RetryAfter => "retry-after",
            Self::RetryAfterMs => "retry-after-ms",
            Self::Grace => "x-tidegate-grace",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::HeaderField;

    #[test]
    fn the_number_of_a_field_is_its_index() {
        for (index, field) in HeaderField::ALL.into_iter().enumerate() {
            assert_eq!(field as usize, index, "{field:?}");
        }
    }
}
