//! Request attributes: their names, which names only a front end may set, and the one spelling of their values.
//!
//! A front end (the tower layer, the gateway, forward-auth, the check API, the Envoy adapter, the command line) turns a
//! request into attributes of a [`Request`](crate::Request), part by part with [`RequestAttributes`]; rules match and count by them.
//! All front ends use this module, so that a request gets the same decision through each.
//!
//! ```
//! use tidegate::attributes;
//!
//! assert_eq!(attributes::normalize_host("API.example.com.:443"), "api.example.com");
//! assert_eq!(attributes::canonical_path("/x/%2e%2e/login", Default::default()).unwrap(), "/login");
//! assert!(attributes::PathReadings::new("/api%2Flogin").unwrap().iter().any(|path| path == "/api/login"));
//! assert_eq!(attributes::header_attribute("X-Api-Key"), "header:x-api-key");
//! assert!(attributes::is_reserved("ip") && !attributes::is_reserved("user"));
//! ```
//!
//! - `request_attributes`: the translator from the parts of an HTTP request to attributes.
//! - `name`: attribute names and the reserved list.
//! - `host`: the normal form of a host.
//! - `method`: known methods in other letters.
//! - `path`: the normal form of a path.
//! - `canonical_path`: the path that a gateway decides on and forwards.
//! - `path_readings`: the ways in which servers read one path.
//! - `path_escape`: escapes in paths.
//! - `header`: header names, and how several lines of one header become one value.
//! - `body_size`: what the head of a request says of its body, and the longest body that rules read.
//! - `text`: the text form of bytes, and letters without their case.
//! - `credentials`: one spelling of `Authorization`.
//! - `normal_form`: the spelling in which a value counts.
//!
//! The functions are pure and accept any text: what is not valid stays recognizable and matches no rule. Only a path that a
//! front end must refuse is an error.

mod request_attributes;
pub use request_attributes::RequestAttributes;
mod name;
pub use name::{
    ACCEPT_HEADER, BODY, CONTENT_LENGTH_HEADER, COOKIE_HEADER, HEADER_PREFIX, HOST, HOST_HEADER, IP, METHOD, PATH,
    PLAN, QUERY, SIZE, TENANT, header_attribute, header_name, is_reserved,
};
mod host;
pub use host::{MAX_HOST_BYTES, host_in_authority, normalize_host};
mod method;
pub use method::misspelled_method;
mod path;
pub(crate) use path::is_plain as is_plain_path;
pub use path::{ASTERISK_PATH, normalize_path, normalize_path_segment};
mod canonical_path;
pub use canonical_path::{EscapedSlashes, PathError, canonical_path};
mod path_readings;
pub use path_readings::{MAX_READINGS, PathReadings};
mod header;
mod path_escape;
pub use header::{is_header_name, is_list_header, join_header_lines};
mod body_size;
pub use body_size::{DEFAULT_MAX_BODY_BYTES, stated_body_size};
mod text;
pub use text::{bytes_to_text, fold_case};
mod credentials;
pub use credentials::is_credential_header;
mod normal_form;
pub use normal_form::{NormalForm, NormalForms, UnknownFormError, names_account};
