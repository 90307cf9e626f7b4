//! `tidegate rules validate`: all problems of the files, a summary of each file, and the production checklist. The rules are in
//! `tidegate-rule-tools`.

use serde::Serialize;
use tidegate_rule_tools::{
    ChecklistItem, ChecklistState, Deployment, checklist, report_for_doors, report_for_every_door,
};
use tidegate_rules::{FrontDoor, MAX_PROBLEMS, Report, RuleFile, Severity};
use tidegate_server::StoreUrl;
use tidegate_server::command::{Exit, Failure, Output, Style, count, load_rule_file};

use super::problem_json::ProblemJson;
use crate::cli::ValidateArgs;

const MET: &str = ChecklistState::Met.as_str();
const UNMET: &str = ChecklistState::Unmet.as_str();

/// The JSON output.
#[derive(Serialize)]
struct ValidationJson<'r> {
    ok: bool,
    files: Vec<FileJson<'r>>,
}

/// The results of one file.
#[derive(Serialize)]
struct FileJson<'r> {
    file: &'r str,
    ok: bool,
    /// `None` if the file is unusable.
    rules: Option<usize>,
    errors: usize,
    warnings: usize,
    notes: usize,
    /// Whether the list of problems may be incomplete.
    cut: bool,
    problems: Vec<ProblemJson<'r>>,
    /// `None` without `--production`, or if the file is unusable.
    checklist: Option<Vec<ChecklistItemJson>>,
    #[serde(skip)]
    report: &'r Report,
}

/// An item of the checklist.
#[derive(Serialize)]
struct ChecklistItemJson {
    name: &'static str,
    state: &'static str,
    detail: String,
}

pub(super) fn run(arguments: &ValidateArgs, output: &mut Output<'_>) -> Result<Exit, Failure> {
    let secret = arguments.production && arguments.secret.secret()?.is_some();
    if let Some(store) = arguments.store.as_ref().filter(|_| arguments.production) {
        // A mistyped URL must not count as a shared store.
        StoreUrl::parse(store).map_err(|reason| Failure::usage(format!("--store: {reason}")))?;
    }
    let mut deployment = Deployment::new().with_secret(secret);
    deployment.store.clone_from(&arguments.store);
    let files: Vec<_> = arguments.files.iter().map(|path| load_rule_file(path)).collect::<Result<_, Failure>>()?;
    let reports: Vec<Report> = files.iter().map(|file| report(file, &arguments.door)).collect();
    let files = files.iter().zip(&reports);
    let results: Vec<_> =
        files.map(|(file, report)| FileJson::new(file.as_ref().ok(), report, arguments, &deployment)).collect();
    let ok = results.iter().all(|file| file.ok);
    if arguments.json {
        output.json(&ValidationJson { ok, files: results });
    } else {
        for (index, file) in results.iter().enumerate() {
            if index > 0 && !file.problems.is_empty() {
                output.line("");
            }
            file.print(output);
        }
    }
    Ok(Exit::from_success(ok))
}

/// All problems of a file, with those at the given front ends, or the most important ones at any.
fn report(file: &Result<RuleFile, Report>, doors: &[FrontDoor]) -> Report {
    match file {
        Ok(file) if doors.is_empty() => report_for_every_door(file),
        Ok(file) => report_for_doors(file, doors),
        Err(report) => report.clone(),
    }
}

impl<'r> FileJson<'r> {
    /// `usable` is the file, if it has no errors.
    fn new(usable: Option<&RuleFile>, report: &'r Report, arguments: &ValidateArgs, deployment: &Deployment) -> Self {
        let count_of = |severity| report.problems().iter().filter(|problem| problem.severity() == severity).count();
        let checklist = usable.filter(|_| arguments.production).map(|file| checklist(file, deployment));
        let unmet = checklist.iter().flatten().any(|item| item.state == ChecklistState::Unmet);
        let checklist = checklist.map(|items| items.into_iter().map(ChecklistItemJson::from).collect());
        let (errors, warnings) = (count_of(Severity::Error), count_of(Severity::Warning));
        Self {
            file: report.file(),
            ok: errors == 0 && !unmet && (warnings == 0 || !arguments.strict),
            rules: usable.map(|file| file.ids().count()),
            errors,
            warnings,
            notes: count_of(Severity::Note),
            // A report keeps at most this many problems.
            cut: report.problems().len() >= MAX_PROBLEMS,
            problems: ProblemJson::from_report(report),
            checklist,
            report,
        }
    }

    fn print(&self, output: &mut Output<'_>) {
        if !self.problems.is_empty() {
            output.line(format_args!("{}\n", self.report.render(output.uses_color())));
        }
        output.line(self.summary(output));
        if let Some(items) = &self.checklist {
            print_checklist(items, output);
        }
    }

    /// `3 errors, 1 warning in rules.yaml`, `at least 100 errors in rules.yaml`, or `rules.yaml: 12 rules, no problems`.
    fn summary(&self, output: &Output<'_>) -> String {
        let file = self.file;
        if self.problems.is_empty() {
            let rules = count(self.rules.unwrap_or_default(), "rule");
            return format!("{file}: {rules}, {}", output.styled(Style::Good, "no problems"));
        }
        let counts = [
            (self.errors, "error", Style::Bad),
            (self.warnings, "warning", Style::Caution),
            (self.notes, "note", Style::Bold),
        ];
        let counts = counts.into_iter().filter(|(number, ..)| *number > 0);
        let counts: Vec<_> = counts.map(|(number, noun, style)| output.styled(style, count(number, noun))).collect();
        format!("{}{} in {file}", if self.cut { "at least " } else { "" }, counts.join(", "))
    }
}

impl From<ChecklistItem> for ChecklistItemJson {
    fn from(item: ChecklistItem) -> Self {
        Self { name: item.name, state: item.state.as_str(), detail: item.detail }
    }
}

fn print_checklist(items: &[ChecklistItemJson], output: &mut Output<'_>) {
    output.line("\nProduction checklist");
    for item in items {
        let (mark, style) = match item.state {
            MET => ("✓", Style::Good),
            UNMET => ("✗", Style::Bad),
            _ => ("?", Style::Caution),
        };
        let mark = output.styled(style, mark);
        output.line(format_args!("  {mark} {}\n      {}", item.name, item.detail));
    }
    let count_of = |state| items.iter().filter(|item| item.state == state).count();
    let (met, unmet) = (count_of(MET), count_of(UNMET));
    let unknown = items.len() - met - unmet;
    output.line(format_args!("  {met} met, {unmet} not met, {unknown} unknown"));
}
