//! `RuleFile`: a rule file without errors.

use std::path::Path;
use std::sync::Arc;

use tidegate::limits::Periods;
use tidegate::{Limit, OnFailure, RuleMode, RuleSet};

use crate::compile;
use crate::compiled_file::CompiledFile;
use crate::problem::{Problem, Report, Severity};
use crate::read::Spanned;
use crate::request_matcher::TenantUse;
use crate::rule_changes::ContentHashes;
use crate::source_file::SourceFile;
use crate::{file_checks, read, schema_types};

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
    pub(crate) compiled: Arc<CompiledFile>,
    pub(crate) hashes: ContentHashes,
    rules: RuleSet,
    report: Report,
}

/// Finds probable mistakes in a file without errors, and in one with only those that [`file_checks`] finds.
pub(crate) type FindLints = fn(&CompiledFile, &mut Vec<Problem>);

impl RuleFile {
    /// Loads a file. On failure, the report has all of its errors.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Report> {
        Self::load_with(path.as_ref(), |_, _| ())
    }

    /// Parses a text; `name` is the file name in reports.
    pub fn parse(name: &str, text: &str) -> Result<Self, Report> {
        Self::parse_with(name, text, |_, _| ())
    }

    pub(crate) fn load_with(path: &Path, find_lints: FindLints) -> Result<Self, Report> {
        let source =
            SourceFile::load(path).map_err(|reason| Report::unreadable(&path.display().to_string(), &reason))?;
        Self::from_source(&source, find_lints)
    }

    pub(crate) fn parse_with(name: &str, text: &str, find_lints: FindLints) -> Result<Self, Report> {
        crate::source_file::check_size(text.len() as u64).map_err(|reason| Report::unreadable(name, &reason))?;
        Self::from_source(&SourceFile::new(name, text), find_lints)
    }

    fn from_source(source: &SourceFile, find_lints: FindLints) -> Result<Self, Report> {
        let mut root = read::parse(source).map_err(|problem| Report::new(source, vec![problem]))?;
        if let Some(key) = root.key("tests") {
            let problem = Problem::error("tests", "this is a test file, not a rule file", key.span.clone());
            return Err(Report::new(source, vec![problem.with_help("run it with `tidegate rules test`")]));
        }
        let mut problems = Vec::new();
        // Rules are decoded one by one, so that an error in one rule does not repeat the work for all of them.
        let rules = root.take_list("rules");
        let hashes = ContentHashes::new(&rules, &root);
        let Some(mut file) = read::decode::<Spanned<schema_types::RuleFileSpec>>(root, &mut problems) else {
            return Err(Report::new(source, problems));
        };
        let rule_count = rules.len();
        file.value.rules = rules.into_iter().filter_map(|rule| read::decode(rule, &mut problems)).collect();
        file.value.lost_rules = file.rules.len() < rule_count;
        let compiled = compile::compile(&file, &mut problems);
        if problems.iter().all(|problem| problem.severity() != Severity::Error) {
            file_checks::check(&compiled, &mut problems);
            find_lints(&compiled, &mut problems);
        }
        Self::finish(source, compiled, hashes, problems)
    }

    fn finish(
        source: &SourceFile,
        compiled: CompiledFile,
        hashes: ContentHashes,
        mut problems: Vec<Problem>,
    ) -> Result<Self, Report> {
        let matcher = &compiled.matcher;
        let rules = compiled.rules.iter().map(|rule| Arc::clone(&rule.matcher.rule));
        let rules = RuleSet::with_matcher(rules, Arc::clone(matcher));
        let rules = rules.map(|rules| {
            rules
                .with_header_policy(compiled.header_policy.clone())
                .with_escaped_slashes(compiled.escaped_slashes)
                .with_max_body_bytes(matcher.max_body_bytes)
        });
        if let Err(error) = &rules
            && !Report::new(source, problems.clone()).has_errors()
        {
            let mut named = compiled.rules.iter().filter(|rule| rule.id == error.rule());
            let span = named.next().map(|rule| rule.id_span.clone());
            problems.push(Problem::error("rule", error.to_string(), span.unwrap_or(0..0)));
        }
        let report = Report::new(source, problems);
        match rules {
            Ok(rules) if !report.has_errors() => Ok(Self { compiled: Arc::new(compiled), hashes, rules, report }),
            _ => Err(report),
        }
    }

    /// The rules, for a [`Limiter`](tidegate::Limiter).
    pub const fn rules(&self) -> &RuleSet {
        &self.rules
    }

    /// Every failure policy that a rule has, by route and for all other requests. None if there is no such rule, or it is disabled.
    pub fn failure_policies(&self, id: &str) -> impl Iterator<Item = OnFailure> {
        let rule = self.compiled.matcher.rules.iter().find(|matcher| matcher.rule.id == id);
        rule.into_iter().flat_map(|matcher| matcher.on_failure.each().map(|(_, policy)| policy))
    }

    /// The rules with a quota that no ledger records, unless they say `ledger: none`. A rule in shadow mode records nothing in any case.
    pub fn unrecorded_quotas(&self) -> impl Iterator<Item = &str> {
        let enabled = self.compiled.rules.iter().filter(|rule| rule.mode == RuleMode::Enabled);
        enabled.filter(|rule| rule.unrecorded_quota.is_some()).map(|rule| rule.id.as_str())
    }

    /// The calendar of each quota, with the owner of its accounts, which is the rule or `$` and its budget, and the name of the limit. A plan
    /// may have another calendar than its rule.
    pub fn quota_periods(&self) -> impl Iterator<Item = (String, &str, Periods)> {
        self.compiled.rules.iter().flat_map(|rule| {
            let owner = rule.budget.as_ref().map_or_else(|| rule.id.to_string(), |budget| format!("${budget}"));
            let limits = rule.limits.iter().chain(rule.plans.iter().flat_map(|(_, limits)| limits));
            limits.filter_map(move |(name, limit)| match limit {
                Limit::Quota(quota) => Some((owner.clone(), name.as_str(), quota.periods())),
                _ => None,
            })
        })
    }

    /// Warnings and notes. There are no errors; lints are found by `tidegate-rule-tools`.
    pub const fn report(&self) -> &Report {
        &self.report
    }
}

/// Listing rules
impl RuleFile {
    /// The ids of all rules in the order of the file, disabled ones included.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.compiled.rules.iter().map(|rule| rule.id.as_str())
    }

    /// The id of each rule and the names in its `per`; empty if all requests share the limit.
    pub fn per_by_rule(&self) -> impl Iterator<Item = (&str, Vec<&str>)> {
        self.compiled.rules.iter().map(|rule| {
            let tenant = (rule.matcher.tenant == TenantUse::Subject).then_some("tenant");
            let each = rule.matcher.per.iter().map(|identity| identity.name.as_str());
            (rule.id.as_str(), tenant.into_iter().chain(each).collect())
        })
    }

    /// Each rule's id and the path patterns that it matches, as the file has them; none if it matches every path.
    pub fn path_patterns(&self) -> impl Iterator<Item = (&str, Vec<String>)> {
        self.compiled.rules.iter().map(|rule| {
            let patterns = rule.matcher.condition.paths.iter().map(ToString::to_string);
            (rule.id.as_str(), patterns.collect())
        })
    }
}
