//! Request attributes: their names, which names only a front door may set, and the one spelling of their values.
//!
//! A front door (the tower layer, the gateway, forward-auth, the check API, the Envoy adapter, the command line) turns a
//! request into attributes of a [`Request`](crate::Request); rules match and count by them. All of them use this module, so
//! that a request gets the same decision through every front door.
//!
//! ```
//! use tidegate::attributes;
//!
//! assert_eq!(attributes::normalize_host("API.example.com.:443"), "api.example.com");
//! assert_eq!(attributes::normalize_path("//login/%2e"), "/login");
//! assert_eq!(attributes::header_attribute("X-Api-Key"), "header:x-api-key");
//! assert!(attributes::is_reserved("ip") && !attributes::is_reserved("user"));
//! ```
//!
//! - `name`: attribute names and the reserved list.
//! - `host`: the normal form of a host.
//! - `path`: the normal form of a path.
//! - `header`: header names, and how several lines of one header become one value.
//!
//! The functions are pure, accept any text and never fail: what is not valid stays recognizable and matches no rule.

mod name;
pub use name::{
    ACCEPT_HEADER, BODY, CONTENT_LENGTH_HEADER, COOKIE_HEADER, HEADER_PREFIX, HOST, HOST_HEADER, IP, METHOD, PATH,
    PLAN, QUERY, TENANT, header_attribute, header_name, is_reserved,
};
mod host;
pub use host::{MAX_HOST_BYTES, host_in_authority, normalize_host};
mod path;
pub use path::{ASTERISK_PATH, normalize_path, normalize_path_segment, split_target};
mod header;
pub use header::{is_header_name, join_header_lines};
