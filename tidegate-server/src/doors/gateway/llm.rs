//! Tokens of language models: what a request is charged for once its response says what it used.
//!
//! ```text
//! request ──▶ request: asks for usage, refuses what cannot be read ──▶ upstream
//! response ◀── metered_body: passes bytes on, commits before the end
//!              ▲── sse: events ──▶ stream_event, and of long ones long_event ──▶ token_count
//!              ▲── json_usage: the usage of an answer that is no stream ──▶ token_count
//! ```
//!
//! The limit layer has reserved the estimated cost, and puts a [`UsageReport`](tidegate_tower::UsageReport) into the request. Everything here
//! leads to one call of it, whatever client and upstream do.
//! A report that is dropped without a call commits what was reserved. Of a response, only an incomplete event or its `usage` is kept.

mod json_usage;
mod lenient_json;
mod long_event;
mod metered_body;
mod object_members;
mod request;
mod sse;
mod stated_usage;
mod stream_event;
mod strict_json;
mod token_count;

pub(super) use metered_body::MeteredBody;
pub(super) use request::LlmRequest;
