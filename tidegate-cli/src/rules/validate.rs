//! `tidegate rules validate`: every problem of the files, a line about each file, and the checklist for production.
//! It judges nothing itself; the library reads and lints.

use serde::Serialize;
use tidegate_rules::{ChecklistItem, ChecklistState, Deployment, MAX_PROBLEMS, Report, RuleFile, Severity};

use super::problem_json::ProblemJson;
use crate::cli::ValidateArgs;
use tidegate_server::StoreUrl;
use tidegate_server::command::{Exit, Failure, Output, Style, count};

const MET: &str = ChecklistState::Met.as_str();
const UNMET: &str = ChecklistState::Unmet.as_str();

/// What was found, for programs.
#[derive(Serialize)]
struct Validation<'r> {
    ok: bool,
    files: Vec<Validated<'r>>,
}

/// What was found in one file.
#[derive(Serialize)]
struct Validated<'r> {
    file: &'r str,
    ok: bool,
    /// None if it cannot be used.
    rules: Option<usize>,
    errors: usize,
    warnings: usize,
    notes: usize,
    /// Whether there may be more problems than are told.
    cut: bool,
    problems: Vec<ProblemJson<'r>>,
    /// None if it was not asked for, or the file cannot be used.
    checklist: Option<Vec<Item>>,
    #[serde(skip)]
    report: &'r Report,
}

/// A line of the checklist, for programs.
#[derive(Serialize)]
struct Item {
    name: &'static str,
    state: &'static str,
    detail: String,
}

pub(super) fn run(arguments: &ValidateArgs, output: &mut Output<'_>) -> Result<Exit, Failure> {
    let secret = arguments.production && arguments.secret.secret()?.is_some();
    if let Some(store) = arguments.store.as_ref().filter(|_| arguments.production) {
        // A slip of the pen must not pass for a store that instances share.
        StoreUrl::parse(store).map_err(|why| Failure::usage(format!("--store: {why}")))?;
    }
    let mut deployment = Deployment::new().with_secret(secret);
    deployment.store = arguments.store.clone();
    let files: Vec<_> = arguments
        .files
        .iter()
        .map(|path| tidegate_server::command::load_rule_file(path))
        .collect::<Result<_, Failure>>()?;
    let found: Vec<_> = files.iter().map(|file| Validated::new(file, arguments, &deployment)).collect();
    let ok = found.iter().all(|file| file.ok);
    if arguments.json {
        output.json(&Validation { ok, files: found });
    } else {
        for (place, file) in found.iter().enumerate() {
            if place > 0 && !file.problems.is_empty() {
                output.line("");
            }
            file.print(output);
        }
    }
    Ok(Exit::from_success(ok))
}

impl<'r> Validated<'r> {
    fn new(file: &'r Result<RuleFile, Report>, arguments: &ValidateArgs, deployment: &Deployment) -> Self {
        let report = file.as_ref().map_or_else(|report| report, RuleFile::report);
        let usable = file.as_ref().ok();
        let number = |severity| report.problems().iter().filter(|problem| problem.severity() == severity).count();
        let checklist = usable.filter(|_| arguments.production).map(|file| file.checklist(deployment));
        let unmet = checklist.iter().flatten().any(|item| item.state == ChecklistState::Unmet);
        let checklist = checklist.map(|items| items.into_iter().map(Item::from).collect());
        let warnings = number(Severity::Warning);
        Self {
            file: report.file(),
            ok: usable.is_some() && !unmet && (warnings == 0 || !arguments.strict),
            rules: usable.map(|file| file.ids().count()),
            errors: number(Severity::Error),
            warnings,
            notes: number(Severity::Note),
            // A report keeps so many: there may be more.
            cut: report.problems().len() >= MAX_PROBLEMS,
            problems: ProblemJson::all(report),
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
        let counted = [
            (self.errors, "error", Style::Bad),
            (self.warnings, "warning", Style::Caution),
            (self.notes, "note", Style::Bold),
        ];
        let counted = counted.into_iter().filter(|(number, ..)| *number > 0);
        let counted: Vec<_> = counted.map(|(number, noun, style)| output.styled(style, count(number, noun))).collect();
        format!("{}{} in {file}", if self.cut { "at least " } else { "" }, counted.join(", "))
    }
}

impl From<ChecklistItem> for Item {
    fn from(item: ChecklistItem) -> Self {
        Self { name: item.name, state: item.state.as_str(), detail: item.detail }
    }
}

fn print_checklist(items: &[Item], output: &mut Output<'_>) {
    output.line("\nFor production");
    for item in items {
        let (mark, style) = match item.state {
            MET => ("✓", Style::Good),
            UNMET => ("✗", Style::Bad),
            _ => ("?", Style::Caution),
        };
        let mark = output.styled(style, mark);
        output.line(format_args!("  {mark} {}\n      {}", item.name, item.detail));
    }
    let number = |state| items.iter().filter(|item| item.state == state).count();
    let (met, unmet) = (number(MET), number(UNMET));
    let unknown = items.len() - met - unmet;
    output.line(format_args!("  {met} met, {unmet} not met, {unknown} that the file cannot tell"));
}
