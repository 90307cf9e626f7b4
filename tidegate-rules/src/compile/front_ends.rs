//! Compiling `front_ends`.

use super::Compiler;
use crate::front_door::FrontDoor;
use crate::schema_types::{FrontEndSpec, RuleSpec};
use crate::source_file::Span;

/// The front ends that a rule is meant for, with their positions.
#[derive(Clone, Debug, Default)]
pub struct FrontEnds(Vec<(FrontDoor, Span)>);

impl FrontEnds {
    /// Whether the file does not say what the rule is meant for, or names this front end.
    pub fn contains(&self, door: FrontDoor) -> bool {
        self.0.is_empty() || self.0.iter().any(|(listed, _)| *listed == door)
    }

    /// Those that the file names; none if it does not say.
    pub fn listed(&self) -> &[(FrontDoor, Span)] {
        &self.0
    }
}

impl Compiler<'_> {
    pub(super) fn front_ends(&mut self, spec: &RuleSpec) -> FrontEnds {
        let Some(at) = &spec.front_ends else { return FrontEnds::default() };
        // An entry that could not be decoded has been reported.
        if at.value.0.is_empty() && at.removed.is_empty() {
            self.error("front-ends", &at.span, "this names no front end")
                .set_help("name those that the rule is meant for, such as `[gateway]`, or remove the field");
        }
        FrontEnds(at.value.0.iter().map(|front_end| (door(front_end.value), front_end.span.clone())).collect())
    }
}

fn door(front_end: FrontEndSpec) -> FrontDoor {
    match front_end {
        FrontEndSpec::Gateway => FrontDoor::Gateway,
        FrontEndSpec::ForwardAuth => FrontDoor::ForwardAuth,
        FrontEndSpec::Check => FrontDoor::Check,
        FrontEndSpec::Tower => FrontDoor::Tower,
        FrontEndSpec::Envoy => FrontDoor::Envoy,
        FrontEndSpec::Library => FrontDoor::Library,
    }
}
