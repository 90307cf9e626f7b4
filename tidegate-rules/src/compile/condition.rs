//! Compiling `match` and `exempt`: paths that can match, hosts, headers, networks, and plans that exist.

use smol_str::SmolStr;
use tidegate::attributes::{MAX_HOST_BYTES, header_attribute};

use super::Compiler;
use crate::condition::{Condition, HostPattern};
use crate::ip;
use crate::path::PathPattern;
use crate::read::Spanned;
use crate::schema_types;
use crate::suggest::suggest;

impl Compiler<'_> {
    pub(super) fn condition(&mut self, written: &schema_types::MatchSpec) -> Condition {
        let texts = |values: &[Spanned<schema_types::TextScalar>]| {
            values.iter().map(|at| SmolStr::new(&at.value.0)).collect::<Vec<_>>()
        };
        Condition {
            methods: written.method.0.iter().filter_map(|at| self.method(at)).collect(),
            paths: written.path.0.iter().filter_map(|at| self.pattern(at)).collect(),
            hosts: written.host.0.iter().filter_map(|at| self.host(at)).collect(),
            headers: written
                .header
                .iter()
                .map(|(name, values)| {
                    let values = texts(&values.0);
                    (
                        header_attribute(name).into(),
                        if values.iter().any(|value| value == "*") { Vec::new() } else { values },
                    )
                })
                .collect(),
            tenants: texts(&written.tenant.0),
            plans: written.plan.0.iter().filter_map(|at| self.plan(at)).collect(),
            actions: written.action.0.iter().map(|at| SmolStr::new(&at.value)).collect(),
            networks: written
                .ip
                .0
                .iter()
                .filter_map(|at| ip::network(at).map_err(|why| _ = self.error("network", &at.span, why)).ok())
                .collect(),
        }
    }

    /// An exemption must ask for something, or it would lift every limit.
    pub(super) fn exemption(&mut self, at: &Spanned<schema_types::MatchSpec>) -> Condition {
        let before = self.problems.len();
        let condition = self.condition(&at.value);
        if self.problems.len() == before && condition.covers(&Condition::default()) {
            let message = "this exempts every request from every rule";
            self.error("exempt-all", &at.span, message)
                .set_help("say what is exempt, or set rules to `mode: disabled`");
        }
        condition
    }

    pub(super) fn method(&mut self, at: &Spanned<String>) -> Option<SmolStr> {
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if at.is_empty() || !at.bytes().all(token) {
            self.error("method", &at.span, format!("`{}` is no HTTP method", at.value));
            return None;
        }
        if at.bytes().any(|byte| byte.is_ascii_lowercase()) {
            let upper = at.to_ascii_uppercase();
            self.error(
                "method",
                &at.span,
                format!("methods are told apart by case, and `{}` is not one in use", at.value),
            )
            .set_help(format!("write `{upper}`"));
            return None;
        }
        Some(SmolStr::new(&at.value))
    }

    pub(super) fn pattern(&mut self, at: &Spanned<String>) -> Option<PathPattern> {
        match PathPattern::parse(at) {
            Ok(pattern) => Some(pattern),
            Err(error) => {
                // Quotes and escapes would shift the place, so it is the whole value that is shown.
                let problem = self.error("path", &at.span, error.problem);
                if let Some(help) = error.help {
                    problem.set_help(help);
                }
                None
            }
        }
    }

    fn host(&mut self, at: &Spanned<String>) -> Option<HostPattern> {
        let lower = at.to_ascii_lowercase();
        let (name, below) = lower.strip_prefix("*.").map_or((lower.as_str(), false), |rest| (rest, true));
        let fits = !name.is_empty()
            && name.len() <= MAX_HOST_BYTES
            && name.split('.').all(|label| !label.is_empty())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._[]".contains(&byte));
        if !fits {
            let message = format!("`{}` is no host", at.value);
            self.error("host", &at.span, message)
                .set_help("write it without scheme and port: `api.example.com`, or `*.example.com` for all below it");
            return None;
        }
        Some(if below { HostPattern::Below(name.into()) } else { HostPattern::Exactly(name.into()) })
    }

    fn plan(&mut self, at: &Spanned<String>) -> Option<SmolStr> {
        if !self.plans.iter().any(|plan| plan == at.as_str()) {
            let help = suggest(at, self.plans.clone().iter().map(SmolStr::as_str));
            self.error("unknown-plan", &at.span, format!("nobody has a plan `{}`", at.value)).set_help(help);
            return None;
        }
        Some(SmolStr::new(&at.value))
    }
}
