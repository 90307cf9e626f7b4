//! The HTTP contract: the header fields that describe limits, and the response to a refused request.
//!
//! [`HeaderPolicy`] chooses the fields and writes them from a [`Decision`](crate::Decision). For a refused request it makes a
//! [`Rejection`]: status, fields and body. Nothing here sends anything, and nothing names a subject or a key.

mod error_format;
mod header_field;
mod header_policy;
mod json_object;
mod rejection;

pub use error_format::ErrorFormat;
pub use header_field::HeaderField;
pub use header_policy::{Draft, HeaderPolicy, Headers, ResetFormat, UnknownDraft};
pub use rejection::Rejection;
