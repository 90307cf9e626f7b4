//! `ProblemJson`: a problem of a file for programs, with its place. Its members are public: they are added to, and not renamed.

use serde::Serialize;
use tidegate_rules::Report;

#[derive(Serialize)]
pub(super) struct ProblemJson<'r> {
    severity: &'static str,
    code: &'static str,
    message: &'r str,
    line: usize,
    column: usize,
    help: Option<&'r str>,
}

impl<'r> ProblemJson<'r> {
    /// Every problem of a file, in its order.
    pub(super) fn all(report: &'r Report) -> Vec<Self> {
        let told = report.problems().iter().map(|problem| {
            let (line, column) = report.position(problem);
            Self {
                severity: problem.severity().as_str(),
                code: problem.code(),
                message: problem.message(),
                line,
                column,
                help: problem.help(),
            }
        });
        told.collect()
    }
}
