//! `Origin`: the front end and the HTTP method of a request, for observers. It has no effect on a decision.

/// Where a request came in, as its front end reports it to [observers](crate::spi::Observer).
///
/// Both values are constants of the program, so that nothing that a client sends reaches a log through them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    front_door: &'static str,
    method: &'static str,
}

impl Origin {
    /// The origin of a request that came in by this front end, such as `gateway`.
    pub const fn new(front_door: &'static str) -> Self {
        Self { front_door, method: "" }
    }

    /// Sets the HTTP method. One that is not registered is reported as `other`.
    pub fn with_method(mut self, method: &str) -> Self {
        self.method = KNOWN_METHODS.into_iter().find(|known| *known == method).unwrap_or("other");
        self
    }

    /// The front end, empty if it has no name.
    pub const fn front_door(self) -> &'static str {
        self.front_door
    }

    /// The HTTP method, empty if there is none.
    pub const fn method(self) -> &'static str {
        self.method
    }
}

/// The methods of RFC 9110 and RFC 5789.
const KNOWN_METHODS: [&str; 9] = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "CONNECT", "TRACE"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_that_a_client_invented_is_not_repeated() {
        assert_eq!(Origin::new("gateway").with_method("PATCH").method(), "PATCH");
        for method in ["hunter2", "get", ""] {
            assert_eq!(Origin::new("gateway").with_method(method).method(), "other");
        }
    }
}
