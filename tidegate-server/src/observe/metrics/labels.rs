//! The label sets of the metrics.

use prometheus_client::encoding::EncodeLabelSet;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct CheckLabels {
    pub(crate) rule: String,
    pub(crate) algorithm: &'static str,
    pub(crate) outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RejectedLabels {
    pub(crate) rule: String,
    pub(crate) subject_type: String,
    pub(crate) reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct FallbackLabels {
    pub(crate) rule: String,
    pub(crate) policy: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct DegradedLabels {
    pub(crate) outcome: &'static str,
    pub(crate) reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct OverloadedLabels {
    pub(crate) rule: String,
    pub(crate) outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RuleLabel {
    pub(crate) rule: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct CallLabels {
    pub(crate) script: &'static str,
    pub(crate) outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ErrorLabels {
    pub(crate) script: &'static str,
    pub(crate) error_type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct OutcomeLabel {
    pub(crate) outcome: &'static str,
}
