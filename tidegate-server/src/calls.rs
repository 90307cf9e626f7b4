//! What every call to an address of the server passes, whichever front end it is for: the browser guard, the limits on bodies and time, JSON in and
//! out, and the paths that every address has.

pub(crate) mod bounded_json;
pub(crate) mod browser_guard;
pub(crate) mod health;
pub(crate) mod json_body;
pub(crate) mod json_problem;
pub(crate) mod large_bodies;
pub(crate) mod openapi;
pub(crate) mod request_limits;
pub(crate) mod retry_after;
pub(crate) mod unknown_calls;
