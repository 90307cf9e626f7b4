//! Compiling `anonymous` and `authenticated`: the bounds for subjects.

use std::time::Duration;

use tidegate::rules::AnonymousBounds;
use tidegate::spi::{DEFAULT_MAX_SUBJECTS, MAX_AMOUNT};

use super::Compiler;
use crate::read::Spanned;
use crate::schema_types::{self, Amount};

impl Compiler<'_> {
    pub(super) fn anonymous(&mut self, spec: &schema_types::AnonymousSpec) -> Option<AnonymousBounds> {
        let default = AnonymousBounds::default();
        let max_subjects =
            spec.most.as_ref().map_or(Some(default.max_subjects), |field| self.max_subjects("anonymous", field));
        let forget_after = spec.forget_after.as_ref().map_or(Some(None), |field| self.forget_after(field).map(Some));
        let bounds = AnonymousBounds::new(max_subjects?);
        Some(forget_after?.map_or(bounds, |after| bounds.with_forget_after(after)))
    }

    /// The maximum number of authenticated subjects.
    pub(super) fn authenticated_bound(&mut self, spec: &schema_types::AuthenticatedSpec) -> Option<u64> {
        spec.most.as_ref().map_or(Some(DEFAULT_MAX_SUBJECTS), |field| self.max_subjects("authenticated", field))
    }

    fn max_subjects(&mut self, section: &'static str, field: &Spanned<Amount>) -> Option<u64> {
        if (1..=MAX_AMOUNT).contains(&field.value.0) {
            return Some(field.value.0);
        }
        let message = format!("{} is out of range: it must be 1 to {MAX_AMOUNT}", field.value.0);
        self.error(section, &field.span, message).set_help("this is the number of subjects with a limit of their own");
        None
    }

    fn forget_after(&mut self, field: &Spanned<String>) -> Option<Duration> {
        let span = self.duration(field)?;
        if span.is_zero() {
            let message = "a subject that is forgotten at once has no limit";
            self.error("anonymous", &field.span, message)
                .set_help("write how long a subject is remembered, such as `10m`");
            return None;
        }
        Some(span)
    }
}
