//! `UpstreamTlsArgs`: the flags for TLS to the upstream.

use std::path::PathBuf;

use clap::Args;
use http::Uri;

use super::{Gateway, GatewayOptions, UpstreamTls, UpstreamTlsFiles};
use crate::args::flag_values::file_error;
use crate::command::failure::Failure;

/// The flags.
#[derive(Args)]
pub(crate) struct UpstreamTlsArgs {
    /// CA that must have signed the certificate of an --upstream with `https://`, PEM; the default is those of the system
    #[arg(long = "upstream-ca", value_name = "FILE", env = "TIDEGATE_UPSTREAM_CA", help_heading = "TLS")]
    ca: Option<PathBuf>,
    /// Certificate that the gateway shows to --upstream, PEM
    #[arg(long = "upstream-cert", value_name = "FILE", env = "TIDEGATE_UPSTREAM_CERT", help_heading = "TLS")]
    certificate: Option<PathBuf>,
    /// Private key of that certificate, PEM
    #[arg(long = "upstream-key", value_name = "FILE", env = "TIDEGATE_UPSTREAM_KEY", help_heading = "TLS")]
    key: Option<PathBuf>,
}

impl UpstreamTlsArgs {
    /// Fails if a flag has no use.
    pub(crate) fn check(&self, upstream: Option<&Uri>) -> Result<(), Failure> {
        match (&self.certificate, &self.key) {
            (Some(_), None) => return Err(Failure::usage("--upstream-cert needs --upstream-key: its private key")),
            (None, Some(_)) => return Err(Failure::usage("--upstream-key needs --upstream-cert: its certificate")),
            _ => {}
        }
        let flag = match (&self.ca, &self.certificate) {
            (Some(_), _) => "--upstream-ca",
            (None, Some(_)) => "--upstream-cert",
            (None, None) => return Ok(()),
        };
        match upstream.map(|address| address.scheme_str()) {
            Some(Some("https" | "h2")) => Ok(()),
            _ => Err(Failure::usage(format!("{flag} needs an --upstream with TLS, such as https://api.example"))),
        }
    }

    /// The gateway to `upstream`.
    pub(crate) fn gateway(&self, upstream: &Uri, options: GatewayOptions) -> Result<Gateway, Failure> {
        let mut files = UpstreamTlsFiles::new();
        files.ca.clone_from(&self.ca);
        files.client = self.certificate.clone().zip(self.key.clone());
        if files == UpstreamTlsFiles::new() {
            return Gateway::new(upstream, options).map_err(|error| Failure::usage(format!("--upstream: {error}")));
        }
        let flags = [
            ("--upstream-ca", self.ca.as_ref()),
            ("--upstream-cert", self.certificate.as_ref()),
            ("--upstream-key", self.key.as_ref()),
        ];
        let tls = UpstreamTls::load(&files).map_err(|error| file_error(&flags, &error))?;
        Gateway::with_tls(upstream, &tls, options).map_err(|error| Failure::usage(format!("--upstream: {error}")))
    }
}
