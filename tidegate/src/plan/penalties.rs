//! Which denials of a plan are strikes: those by the limits of a rule that has a penalty.

use super::Plan;

/// Penalties
impl Plan<'_> {
    /// Whether a rule of the plan has a penalty.
    #[inline]
    pub fn has_penalty(&self) -> bool {
        self.checks.len() > 1 && self.checks.iter().any(|check| check.gate().is_penalty())
    }

    /// The index of the penalty that a denial by the check at `index` strikes: that of the same rule and subject.
    pub fn penalty_of(&self, index: usize) -> Option<usize> {
        let check = self.checks.get(index).filter(|check| !check.gate().is_penalty())?;
        self.checks.iter().position(|other| {
            let (own, gate) = (check.gate(), other.gate());
            let is_same_rule = gate.is_penalty() && gate.rule().id == own.rule().id && gate.role() == own.role();
            is_same_rule && other.key().subject() == check.key().subject()
        })
    }
}
