//! What the server reports about itself: metrics and the log. None of it names a subject, except in the refusal log.

pub(crate) mod log;
pub(crate) mod metrics;
pub(crate) mod observers;
