//! What the commands of the binary `tidegate` share, and `tidegate serve` itself.

pub(crate) mod duration_text;
pub(crate) mod exit;
pub(crate) mod failure;
pub(crate) mod output;
pub(crate) mod rule_file;
pub(crate) mod timer;

pub use self::duration_text::{format_duration, whole_millis};
pub use self::exit::Exit;
pub use self::failure::Failure;
pub use self::output::{ColorChoice, Output, Style, count};
pub use self::rule_file::load_rule_file;
pub use self::timer::tokio_timer;
pub use crate::admin::read_token;
pub use crate::args::namespace_args::NamespaceArgs;
pub use crate::args::secret::SecretArgs;
pub use crate::args::serve_args::ServeArgs;
pub use crate::lifecycle::reload::stopped as stop_signal;
pub use crate::observe::log::status_log::MAX_RULE_DIFFERENCE;
pub use crate::serve::run as serve;
