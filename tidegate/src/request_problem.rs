//! `RequestProblem`: why a request cannot be judged. It names where a value was read, never the value.

use std::error::Error;
use std::fmt;

use smol_str::SmolStr;

use crate::attributes::{PATH, PathError};

/// Why a request cannot be judged: a value that rules read has more than one reading, is too long to be read, or is missing where it must
/// not be.
///
/// Such a request is denied with [`Decision::problem`](crate::Decision::problem). It consumes nothing. Whatever it would count as, the
/// service behind the limits could read it as something else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestProblem {
    kind: RequestProblemKind,
    source: SmolStr,
}

/// The kind of a [`RequestProblem`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestProblemKind {
    /// The value comes more than once, and servers disagree about which one counts.
    Repeated,
    /// The value comes more often than a request is judged for.
    TooManyValues,
    /// Servers disagree about where the value begins or ends.
    Ambiguous,
    /// The value is longer than what is read.
    TooLong,
    /// The path is refused.
    Path(PathError),
    /// The value is missing, and a rule that [refuses](crate::rules::OnMissing::Error) such requests counts by it.
    Missing,
}

impl RequestProblem {
    /// A problem with the value of `source`, such as `header:x-api-key` or `query:account`.
    pub fn new(kind: RequestProblemKind, source: impl AsRef<str>) -> Self {
        Self { kind, source: SmolStr::new(source) }
    }

    /// The kind of the problem.
    pub const fn kind(&self) -> RequestProblemKind {
        self.kind
    }

    /// Where the value was read, such as `header:x-api-key` or `query:account`.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The HTTP status of the response: 400, or 431 and 413 for a header and a body that are too long.
    pub fn status(&self) -> u16 {
        match self.kind {
            RequestProblemKind::TooLong if self.source.starts_with("body") => 413,
            RequestProblemKind::TooLong => 431,
            _ => 400,
        }
    }
}

impl fmt::Display for RequestProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = &self.source;
        match self.kind {
            RequestProblemKind::Repeated => write!(f, "The request has more than one `{source}`. Send it once."),
            RequestProblemKind::TooManyValues => write!(f, "The request has too many values of `{source}`."),
            RequestProblemKind::Ambiguous if source.starts_with("header:") => {
                write!(
                    f,
                    "The request has a `{source}` that servers read differently. Send the credentials of one client."
                )
            }
            RequestProblemKind::Ambiguous => {
                write!(f, "The request has a `{source}` that servers read differently. Write `;` in it as `%3B`.")
            }
            RequestProblemKind::TooLong => write!(f, "The `{source}` of the request is too long to be read."),
            RequestProblemKind::Path(error) => error.fmt(f),
            RequestProblemKind::Missing => write!(f, "The request has no `{source}`, by which it is counted. Send it."),
        }
    }
}

impl From<PathError> for RequestProblem {
    fn from(error: PathError) -> Self {
        Self::new(RequestProblemKind::Path(error), PATH)
    }
}

impl Error for RequestProblem {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_problem_has_the_status_that_http_has_for_it() {
        for (kind, source, status) in [
            (RequestProblemKind::Repeated, "header:x-key", 400),
            (RequestProblemKind::TooManyValues, "cookie:id", 400),
            (RequestProblemKind::Ambiguous, "query:account", 400),
            (RequestProblemKind::TooLong, "header:authorization", 431),
            (RequestProblemKind::TooLong, "body", 413),
            (RequestProblemKind::Path(PathError::TooManyReadings), "path", 400),
            (RequestProblemKind::Missing, "tenant", 400),
        ] {
            let problem = RequestProblem::new(kind, source);
            assert_eq!((problem.kind(), problem.source(), problem.status()), (kind, source, status));
            assert!(problem.to_string().contains(source), "{problem}");
        }
    }
}
