//! The YAML reader of rule files, for other configuration files: bounded work, and a position for every value, so that problems
//! can be shown in place. Callers check the structure.
//!
//! ```
//! use tidegate_rules::yaml::{self, NodeKind, SourceFile};
//! use tidegate_rules::{Problem, Report, suggest};
//!
//! let source = SourceFile::new("server.yaml", "http: 127.0.0.1:8080\ndrian: 10\n");
//! let root = yaml::parse(&source)?;
//! let NodeKind::Map(fields) = &root.kind else { panic!("expected a map, found {}", root.type_name()) };
//! let (key, value) = &fields[1];
//! assert_eq!((key.text(), value.text(), source.position(key.span.start)), (Some("drian"), Some("10"), (2, 1)));
//!
//! let problem = Problem::error("unknown-field", "unknown field `drian`", key.span.clone());
//! let report = Report::new(&source, vec![problem.with_help(suggest("drian", ["http", "drain"].into_iter()))]);
//! assert!(report.render(false).contains("did you mean `drain`?"));
//! # Ok::<(), Report>(())
//! ```

pub use crate::read::{Node, NodeKind};
pub use crate::source_file::{MAX_FILE_BYTES, SourceFile};

use crate::problem::Report;
use crate::read;
use crate::source_file::check_size;

/// Parses a document. Fails on invalid YAML, deep nesting, alias bombs and very long documents.
pub fn parse(source: &SourceFile) -> Result<Node, Report> {
    check_size(source.text().len() as u64).map_err(|reason| Report::unreadable(source.name(), &reason))?;
    read::parse(source).map_err(|problem| Report::new(source, vec![problem]))
}
