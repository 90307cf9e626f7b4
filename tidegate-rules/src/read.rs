//! Reading: from the text of a YAML file to [`schema_types`](crate::schema_types), with every problem of the file.
//!
//! ```text
//! SourceFile ──▶ Node (YAML with positions) ──▶ decode (serde, continues after an error) ──▶ schema types
//! ```

mod access;
mod deserializer;
mod node;
mod spanned;
mod yaml;

pub use deserializer::decode;
pub use node::{Node, NodeKind};
pub(crate) use spanned::Required;
pub use spanned::{OneOrMany, Spanned};
pub use yaml::parse;
