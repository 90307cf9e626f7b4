//! `RuleFile`: a rule file that was read, understood and found usable.

use std::path::Path;
use std::sync::Arc;

use tidegate::RuleSet;

use crate::compile::{self, CompiledFile, CompiledRule};
use crate::problem::{Problem, Report};
use crate::read::Spanned;
use crate::request_matcher::RequestMatcher;
use crate::source_file::SourceFile;
use crate::{lint, read, schema_types};

/// The rules of a file, ready for a [`Limiter`](tidegate::Limiter).
///
/// ```
/// use tidegate::{Limiter, MemoryStore, Request};
/// use tidegate_rules::RuleFile;
///
/// let file = RuleFile::parse("rules.yaml", "
/// version: 1
/// rules:
///   - id: login
///     match: { action: login }
///     per: [attr:account]
///     sliding_log: { limit: 5, window: 10m }
///     on_failure: closed
///     security: true
/// ")?;
/// let limiter = Limiter::new(file.rules().clone(), MemoryStore::new());
/// let decision = limiter.check_now(&Request::new("login").with_attribute("account", "a7"));
/// assert_eq!((decision.rule(), decision.remaining()), (Some("login"), Some(4)));
/// # Ok::<(), tidegate_rules::Report>(())
/// ```
#[derive(Clone, Debug)]
pub struct RuleFile {
    pub(crate) matcher: Arc<RequestMatcher>,
    pub(crate) compiled: Arc<Vec<CompiledRule>>,
    /// The line of each exemption.
    pub(crate) exempt_lines: Vec<usize>,
    rules: RuleSet,
    report: Report,
}

impl RuleFile {
    /// Reads a file. The report of one that cannot be used has all of its errors.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Report> {
        let path = path.as_ref();
        let source = SourceFile::load(path).map_err(|why| Report::unreadable(&path.display().to_string(), &why))?;
        Self::of(&source)
    }

    /// Reads a text as if it were a file of this name.
    pub fn parse(name: &str, text: &str) -> Result<Self, Report> {
        crate::source_file::too_large(text.len() as u64).map_err(|why| Report::unreadable(name, &why))?;
        Self::of(&SourceFile::new(name, text))
    }

    fn of(source: &SourceFile) -> Result<Self, Report> {
        let mut root = read::parse(source).map_err(|problem| Report::new(source, vec![problem]))?;
        if let Some(key) = root.key("tests") {
            let problem = Problem::error("tests", "this is a file of tests, not of rules", key.span.clone());
            return Err(Report::new(source, vec![problem.with_help("run it with `tidegate rules test`")]));
        }
        let mut problems = Vec::new();
        // Rules are decoded one by one, so that a mistake in one of thousands does not cost a look at all.
        let rules = root.take_list("rules");
        let Some(mut file) = read::decode::<schema_types::RuleFileSpec>(root, &mut problems) else {
            return Err(Report::new(source, problems));
        };
        let written = rules.len();
        for rule in rules {
            if let Some((mut rule, damaged)) = read::decode_part::<Spanned<schema_types::RuleSpec>>(rule, &mut problems)
            {
                rule.value.damaged = damaged;
                file.rules.push(rule);
            }
        }
        file.lost_rules = file.rules.len() < written;
        let ready = compile::compile(&file, &mut problems);
        lint::lint(&ready, &mut problems);
        Self::finish(source, ready, problems)
    }

    fn finish(source: &SourceFile, ready: CompiledFile, mut problems: Vec<Problem>) -> Result<Self, Report> {
        let CompiledFile { matcher, rules: compiled, contract, exempt, .. } = ready;
        let exempt_lines = exempt.iter().map(|span| source.position(span.start).0).collect();
        let matcher = Arc::new(matcher);
        let rules = RuleSet::with_matcher(compiled.iter().map(CompiledRule::rule), Arc::clone(&matcher));
        let rules = rules.map(|rules| rules.with_header_policy(contract));
        if let Err(error) = &rules
            && !Report::new(source, problems.clone()).has_errors()
        {
            let place = compiled.iter().find(|rule| rule.matcher.id == error.rule()).map(|rule| rule.id_span.clone());
            problems.push(Problem::error("rule", error.to_string(), place.unwrap_or(0..0)));
        }
        let report = Report::new(source, problems);
        match rules {
            Ok(rules) if !report.has_errors() => {
                Ok(Self { matcher, compiled: Arc::new(compiled), exempt_lines, rules, report })
            }
            _ => Err(report),
        }
    }

    /// The rules, for a [`Limiter`](tidegate::Limiter).
    pub const fn rules(&self) -> &RuleSet {
        &self.rules
    }

    /// What its author should know although it can be used: warnings and notes.
    pub const fn report(&self) -> &Report {
        &self.report
    }
}
