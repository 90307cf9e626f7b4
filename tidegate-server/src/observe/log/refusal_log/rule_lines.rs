//! `RuleLines`: counts the lines of a rule, and of a few subjects under it, in a window.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tidegate::spi::Subject;

/// Lines of one rule and one subject in a window.
pub(crate) const MAX_LINES_PER_SUBJECT: u64 = 5;

/// Lines of one rule in a window.
pub(crate) const MAX_LINES_PER_RULE: u32 = 10;

/// Subjects of a rule that are counted separately in a window.
const SUBJECT_SLOTS: usize = 16;

/// A rule, and its lines in this window.
#[derive(Debug, Default)]
pub(crate) struct RuleLines {
    pub(crate) subject_type: String,
    /// The path patterns as the rule file has them.
    pub(crate) route: Option<String>,
    pub(crate) lines: AtomicU32,
    pub(crate) suppressed: AtomicU64,
    /// For a few subjects: the window, a part of the subject's hash, and the number of lines.
    subjects: [AtomicU64; SUBJECT_SLOTS],
}

impl RuleLines {
    pub(crate) fn new(subject_type: String, route: Option<String>) -> Self {
        Self { subject_type, route, ..Self::default() }
    }

    /// Whether a line of this rule and subject may be written in this window. Two threads at once may write one line more of a
    /// subject, never of a rule.
    pub(crate) fn admits(&self, window: u32, subject: Subject) -> bool {
        if self.lines.load(Ordering::Relaxed) >= MAX_LINES_PER_RULE {
            return false;
        }
        let hash = subject.hash() as u64;
        let slot = &self.subjects[hash as usize % SUBJECT_SLOTS];
        // The window, 24 bits of the subject, and 8 bits that count.
        let owner = (u64::from(window) << 32) | (hash & 0xffff_ff00);
        let before = slot.load(Ordering::Relaxed);
        let lines = if before & !0xff == owner { before & 0xff } else { 0 };
        if lines >= MAX_LINES_PER_SUBJECT {
            return false;
        }
        slot.store(owner | (lines + 1), Ordering::Relaxed);
        self.lines.fetch_add(1, Ordering::Relaxed) < MAX_LINES_PER_RULE
    }
}
