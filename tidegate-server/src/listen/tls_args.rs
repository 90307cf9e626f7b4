//! `TlsArgs`: the flags of the certificate that the server shows.

use std::path::PathBuf;

use clap::Args;

use super::tls::{Tls, TlsFiles};
use crate::args::flag_values::file_error;
use crate::command::failure::Failure;

/// The flags.
#[derive(Args)]
#[allow(clippy::struct_field_names, reason = "each field is a flag, and named like it")]
pub(crate) struct TlsArgs {
    /// Certificate of --http, --grpc and --gateway, PEM; reloaded when it changes
    #[arg(long, value_name = "FILE", env = "TIDEGATE_TLS_CERT", help_heading = "TLS")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of the certificate, PEM
    #[arg(long, value_name = "FILE", env = "TIDEGATE_TLS_KEY", help_heading = "TLS")]
    pub(crate) tls_key: Option<PathBuf>,
    /// CA that must have signed the client certificates, PEM; required on --http and --grpc, not on the gateway
    #[arg(long, value_name = "FILE", env = "TIDEGATE_TLS_CLIENT_CA", help_heading = "TLS")]
    pub(crate) tls_client_ca: Option<PathBuf>,
}

impl TlsArgs {
    /// The files, if the flags name them.
    pub(crate) fn files(&self) -> Result<Option<TlsFiles>, Failure> {
        match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => Ok(Some(TlsFiles {
                certificate: certificate.clone(),
                key: key.clone(),
                client_ca: self.tls_client_ca.clone(),
            })),
            (Some(_), None) => Err(Failure::usage("--tls-cert needs --tls-key: the private key of the certificate")),
            (None, Some(_)) => Err(Failure::usage("--tls-key needs --tls-cert: the certificate of the private key")),
            (None, None) if self.tls_client_ca.is_none() => Ok(None),
            (None, None) => Err(Failure::usage("--tls-client-ca needs --tls-cert and --tls-key")),
        }
    }

    /// Reads these files. An error names the flag of the file.
    pub(crate) fn load(files: &TlsFiles) -> Result<Tls, Failure> {
        let flags = [
            ("--tls-cert", Some(&files.certificate)),
            ("--tls-key", Some(&files.key)),
            ("--tls-client-ca", files.client_ca.as_ref()),
        ];
        Tls::load(files.clone()).map_err(|error| file_error(&flags, &error))
    }
}
