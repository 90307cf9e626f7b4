//! The YAML reader of rule files, for other files that people write: bounded work, and every value with its place, so that a
//! problem can be shown where it stands. What belongs where is for the caller to say.
//!
//! ```
//! use tidegate_rules::yaml::{self, Kind, SourceFile};
//! use tidegate_rules::{Problem, Report, suggest};
//!
//! let source = SourceFile::new("server.yaml", "http: 127.0.0.1:8080\ndrian: 10\n");
//! let root = yaml::parse(&source)?;
//! let Kind::Map(fields) = &root.kind else { panic!("{} is no set of fields", root.what()) };
//! let (key, value) = &fields[1];
//! assert_eq!((key.text(), value.text(), source.position(key.span.start)), (Some("drian"), Some("10"), (2, 1)));
//!
//! let problem = Problem::error("unknown-field", "there is no field `drian` here", key.span.clone());
//! let report = Report::new(&source, vec![problem.with_help(suggest("drian", ["http", "drain"].into_iter()))]);
//! assert!(report.render(false).contains("did you mean `drain`?"));
//! # Ok::<(), Report>(())
//! ```

pub use crate::read::{Node, NodeKind};
pub use crate::source_file::{MAX_FILE_BYTES, SourceFile};

use crate::problem::Report;
use crate::read;
use crate::source_file::too_large;

/// The whole document, or why it is not one. Deep nesting, alias bombs and endless documents are among the reasons.
pub fn parse(source: &SourceFile) -> Result<Node, Report> {
    too_large(source.text().len() as u64).map_err(|why| Report::unreadable(source.name(), &why))?;
    read::parse(source).map_err(|problem| Report::new(source, vec![problem]))
}
