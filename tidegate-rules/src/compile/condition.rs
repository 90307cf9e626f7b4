//! Compiling `match`.

use smol_str::SmolStr;
use tidegate::attributes::{MAX_HOST_BYTES, NormalForm, header_attribute};

use super::Compiler;
use crate::condition::{Condition, HostPattern};
use crate::ip;
use crate::path::PathPattern;
use crate::read::Spanned;
use crate::schema_types;
use crate::suggest::suggest;

impl Compiler<'_> {
    pub(super) fn condition(&mut self, spec: &schema_types::MatchSpec) -> Condition {
        let texts = |values: &[Spanned<schema_types::TextScalar>]| {
            values.iter().map(|field| SmolStr::new(&field.value.0)).collect::<Vec<_>>()
        };
        Condition {
            methods: spec.method.0.iter().filter_map(|field| self.method(field)).collect(),
            paths: spec.path.0.iter().filter_map(|field| self.pattern(field)).collect(),
            hosts: spec.host.0.iter().filter_map(|field| self.host(field)).collect(),
            headers: spec
                .header
                .iter()
                .map(|(name, values)| {
                    let mut values = texts(&values.0);
                    if self.authenticated.has_credentials(name) {
                        let normal = |value: &SmolStr| SmolStr::new(NormalForm::Credentials.apply(value));
                        values = values.iter().map(normal).collect();
                    }
                    (
                        header_attribute(name).into(),
                        if values.iter().any(|value| value == "*") { Vec::new() } else { values },
                    )
                })
                .collect(),
            tenants: texts(&spec.tenant.0),
            plans: spec.plan.0.iter().filter_map(|field| self.plan(field)).collect(),
            actions: spec.action.0.iter().map(|field| SmolStr::new(&field.value)).collect(),
            networks: spec
                .ip
                .0
                .iter()
                .filter_map(|field| {
                    ip::parse_network(field).map_err(|why| _ = self.error("network", &field.span, why)).ok()
                })
                .collect(),
        }
    }

    pub(super) fn method(&mut self, field: &Spanned<String>) -> Option<SmolStr> {
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if field.is_empty() || !field.bytes().all(token) {
            self.error("method", &field.span, format!("`{}` is not an HTTP method", field.value));
            return None;
        }
        if field.bytes().any(|byte| byte.is_ascii_lowercase()) {
            let upper = field.to_ascii_uppercase();
            self.error(
                "method",
                &field.span,
                format!("HTTP methods are case-sensitive, and `{}` is not a known one", field.value),
            )
            .set_help(format!("write `{upper}`"));
            return None;
        }
        Some(SmolStr::new(&field.value))
    }

    pub(super) fn pattern(&mut self, field: &Spanned<String>) -> Option<PathPattern> {
        match PathPattern::parse(field) {
            Ok(pattern) => Some(pattern),
            Err(error) => {
                // Quotes and escapes would shift the offset, so the whole value is shown.
                let problem = self.error("path", &field.span, error.problem);
                if let Some(help) = error.help {
                    problem.set_help(help);
                }
                None
            }
        }
    }

    fn host(&mut self, field: &Spanned<String>) -> Option<HostPattern> {
        let lower = field.to_ascii_lowercase();
        let (name, below) = lower.strip_prefix("*.").map_or((lower.as_str(), false), |rest| (rest, true));
        let fits = !name.is_empty()
            && name.len() <= MAX_HOST_BYTES
            && name.split('.').all(|label| !label.is_empty())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._[]".contains(&byte));
        if !fits {
            let message = format!("`{}` is not a host name", field.value);
            self.error("host", &field.span, message)
                .set_help("write it without scheme and port: `api.example.com`, or `*.example.com` for its subdomains");
            return None;
        }
        Some(if below { HostPattern::Below(name.into()) } else { HostPattern::Exactly(name.into()) })
    }

    fn plan(&mut self, field: &Spanned<String>) -> Option<SmolStr> {
        if !self.lost_plans && !self.plans.iter().any(|plan| plan == field.as_str()) {
            let help = suggest(field, self.plans.clone().iter().map(SmolStr::as_str));
            self.error("unknown-plan", &field.span, format!("there is no plan `{}`", field.value)).set_help(help);
            return None;
        }
        Some(SmolStr::new(&field.value))
    }
}
