//! `SubjectAttributes`: what a rule counts by, as its `per` says it.

use smol_str::SmolStr;

use crate::Request;
use crate::attributes::{NormalForms, PLAN, UnknownFormError};
use crate::rule::{OnMissing, Rule, RuleMode};

/// The attributes that a rule counts by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SubjectAttributes {
    pub(super) names: Vec<SmolStr>,
    /// The normal form of each, for rules without a matcher, which has normal values. Empty if none has any.
    pub(super) forms: Vec<NormalForms>,
}

impl SubjectAttributes {
    pub(super) fn from_rule(rule: &Rule) -> Result<Self, UnknownFormError> {
        let (mut names, mut forms) = (Vec::new(), Vec::new());
        for text in &rule.per {
            let (name, stated) = NormalForms::split(text)?;
            forms.push(stated.unwrap_or_else(|| NormalForms::default_for(name, rule.security)));
            names.push(SmolStr::new(name));
        }
        if forms.iter().all(NormalForms::is_empty) {
            forms.clear();
        }
        Ok(Self { names, forms })
    }

    /// The index of an attribute.
    pub(super) fn position(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|own| own == name)
    }

    /// The first attribute that `request` lacks, if `rule` refuses it then. A plan identifies nobody.
    pub(super) fn missing(&self, rule: &Rule, request: &Request<'_>) -> Option<&str> {
        let refuses = rule.on_missing == OnMissing::Error && rule.mode != RuleMode::Shadow;
        let is_missing = |name: &&SmolStr| *name != PLAN && request.attribute(name).is_none_or(str::is_empty);
        if refuses { self.names.iter().find(is_missing).map(SmolStr::as_str) } else { None }
    }

    /// The first attribute of `request` that servers read as that of two clients.
    pub(super) fn ambiguous(&self, request: &Request<'_>) -> Option<&str> {
        let is_ambiguous = |(name, forms): &(&SmolStr, &NormalForms)| {
            request.attribute(name).is_some_and(|value| forms.is_ambiguous(value))
        };
        self.names.iter().zip(&self.forms).find(is_ambiguous).map(|(name, _)| name.as_str())
    }
}
