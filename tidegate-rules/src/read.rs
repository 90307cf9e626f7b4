//! Reading: from the text of a YAML file to the types in [`written`](crate::written), with every problem it has.
//!
//! ```text
//! Source ──▶ Node (YAML, with places) ──▶ decode (serde, goes on after a problem) ──▶ written types
//! ```

mod access;
mod at;
mod decode;
mod node;
mod yaml;

pub(crate) use at::{At, OneOrMany};
pub(crate) use decode::{decode, decode_part};
pub use node::{Kind, Node};
pub(crate) use yaml::parse;
