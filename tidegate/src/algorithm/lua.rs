//! The limits in Lua: the text of each twin, for a store to compose its scripts from.
//!
//! Each file defines one local function of the name of the limit, with the signature that `ops.lua` explains.

/// The operations and the margin: comes first in every script.
pub const OPS: &str = include_str!("ops.lua");
/// `token_bucket`
pub const TOKEN_BUCKET: &str = include_str!("token_bucket.lua");
/// `leaky_bucket`, which needs [`TOKEN_BUCKET`] before it.
pub const LEAKY_BUCKET: &str = include_str!("leaky_bucket.lua");
/// `fixed_window`
pub const FIXED_WINDOW: &str = include_str!("fixed_window.lua");
/// `sliding_log`
pub const SLIDING_LOG: &str = include_str!("sliding_log.lua");
/// `sliding_window`
pub const SLIDING_WINDOW: &str = include_str!("sliding_window.lua");
