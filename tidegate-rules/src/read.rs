//! Reading: from the text of a YAML file to the types in [`written`](crate::schema_types), with every problem it has.
//!
//! ```text
//! SourceFile ──▶ Node (YAML, with places) ──▶ decode (serde, goes on after a problem) ──▶ written types
//! ```

mod access;
mod deserializer;
mod node;
mod spanned;
mod yaml;

pub(crate) use deserializer::{decode, decode_part};
pub use node::{Node, NodeKind};
pub(crate) use spanned::{OneOrMany, Spanned};
pub(crate) use yaml::parse;
