//! The Tidegate server: every front door in one process, around one limiter.
//!
//! ```text
//! ServeArgs ──▶ serve ──▶ check API │ forward-auth │ Envoy rate limit service │ gateway │ admin
//!                  │         └────────────┴───────────────┬──────────────────────┘
//!               Listener                          Limiter on AnyStore
//! ```
//!
//! - [`gateway`] and [`envoy`] can be used without the server, as a tower service and a gRPC service.
//! - [`Listener`] accepts connections for all of them: TLS, timeouts, size limits, draining.
//! - [`AnyStore`] is the store that a URL names.
//! - [`command`] has what the commands of the binary share: output, exit codes, failures.

mod check_response;
pub use check_response::CheckResponse;
mod degraded;
mod duration_text;
pub mod envoy;
mod exit;
mod failure;
pub mod gateway;
mod listen;
pub use listen::{ConnectionLimits, Listener, Tls, TlsError, TlsFiles};
mod output;
mod rule_file;
mod secret;
mod serve;
pub use serve::Server;
mod store;
pub use store::{AnyStore, StoreUrl};
mod timer;

/// What the commands of the binary `tidegate` share, and `tidegate serve` itself.
pub mod command {
    pub use crate::duration_text::{format_duration, whole_millis};
    pub use crate::exit::Exit;
    pub use crate::failure::Failure;
    pub use crate::output::{ColorChoice, Output, Style, count};
    pub use crate::rule_file::load_rule_file;
    pub use crate::secret::SecretArgs;
    pub use crate::serve::{ServeArgs, run as serve, stop_signal};
    pub use crate::timer::tokio_timer;
}
