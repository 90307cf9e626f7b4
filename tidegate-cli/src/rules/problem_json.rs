//! `ProblemJson`: a problem of a file as JSON, with its position. The field names are public: fields may be added, not renamed.

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
    /// All problems of a report, in order.
    pub(super) fn from_report(report: &'r Report) -> Vec<Self> {
        let problems = report.problems().iter().map(|problem| {
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
        problems.collect()
    }
}
