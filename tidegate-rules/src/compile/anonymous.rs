//! Compiling what becomes of strangers: numbers and times that can hold.

use std::time::Duration;

use tidegate::AnonymousBounds;
use tidegate::spi::MAX_AMOUNT;

use super::Compiler;
use crate::read::Spanned;
use crate::schema_types::{self, Amount};

impl Compiler<'_> {
    pub(super) fn anonymous(&mut self, written: &schema_types::AnonymousSpec) -> Option<AnonymousBounds> {
        let default = AnonymousBounds::default();
        let most = written.most.as_ref().map_or(Some(default.max_subjects), |at| self.most(at));
        let forget_after = written.forget_after.as_ref().map_or(Some(None), |at| self.forget_after(at).map(Some));
        let bounds = AnonymousBounds::new(most?);
        Some(forget_after?.map_or(bounds, |after| bounds.with_forget_after(after)))
    }

    fn most(&mut self, at: &Spanned<Amount>) -> Option<u64> {
        if (1..=MAX_AMOUNT).contains(&at.value.0) {
            return Some(at.value.0);
        }
        let message = format!("{} is out of range: 1 to {MAX_AMOUNT} are possible", at.value.0);
        self.error("anonymous", &at.span, message).set_help("it is how many strangers have a limit of their own");
        None
    }

    fn forget_after(&mut self, at: &Spanned<String>) -> Option<Duration> {
        let span = self.duration(at)?;
        if span.is_zero() {
            let message = "whoever is forgotten at once has no limit";
            self.error("anonymous", &at.span, message).set_help("say for how long one matters, such as `10m`");
            return None;
        }
        Some(span)
    }
}
