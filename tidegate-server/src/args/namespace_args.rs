//! `NamespaceArgs`: the flag of the namespace.

use clap::Args;
use tidegate::spi::Namespace;

/// The namespace.
#[derive(Args)]
pub struct NamespaceArgs {
    /// Name that separates this deployment from others on the same store: its keys begin with it, and only its instances are counted. The same on
    /// all instances. It has 2 to 32 letters, digits, `-`, `_`, `.` and `:`, and does not begin with the name of another
    #[arg(long, value_name = "NAME", env = "TIDEGATE_NAMESPACE", default_value = Namespace::DEFAULT)]
    pub namespace: Namespace,
}
