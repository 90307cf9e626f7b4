//! `UpstreamTls`: the certificate authorities that the gateway accepts for its upstream, and its own client certificate. The files
//! are read once, at the start.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::upstream::UpstreamError;
use crate::listen::{TlsError, certificates};

/// Paths of PEM files for connections to an upstream. Without any, the certificate authorities of the system are trusted, and the
/// gateway shows no certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UpstreamTlsFiles {
    /// The authorities of the upstream's certificate, in place of those of the system.
    pub ca: Option<PathBuf>,
    /// The certificate that the gateway shows, followed by its intermediates, and its private key.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// How connections to an upstream are secured. Clones share it.
#[derive(Clone)]
pub struct UpstreamTls(Arc<ClientConfig>);

/// TLS with one upstream, whose name is checked.
#[derive(Clone)]
pub(super) struct UpstreamConnectorTls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl UpstreamTlsFiles {
    /// The authorities of the system, and no certificate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts the authorities in this file alone.
    #[must_use]
    pub fn with_ca(mut self, file: impl Into<PathBuf>) -> Self {
        self.ca = Some(file.into());
        self
    }

    /// Shows this certificate to the upstream.
    #[must_use]
    pub fn with_client_certificate(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.client = Some((certificate.into(), key.into()));
        self
    }
}

impl UpstreamTls {
    /// Reads the files once.
    pub fn load(files: &UpstreamTlsFiles) -> Result<Self, TlsError> {
        let roots = match &files.ca {
            Some(file) => roots_of(file)?,
            None => system_roots()?,
        };
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        // The provider has the default versions, so this does not fail.
        let builder = builder
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::new(Path::new("TLS"), error.to_string()))?;
        let builder = builder.with_root_certificates(roots);
        let config = match &files.client {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificates(certificate)?;
                let private = PrivateKeyDer::from_pem_file(key)
                    .map_err(|error| TlsError::unreadable(key, "a private key", &error))?;
                builder.with_client_auth_cert(chain, private).map_err(|error| {
                    TlsError::new(certificate, format!("{error}; does it belong to {}?", key.display()))
                })?
            }
        };
        Ok(Self(Arc::new(config)))
    }

    /// For connections to `host`, on which `protocol` is spoken.
    pub(super) fn connector(&self, host: &str, protocol: &[u8]) -> Result<UpstreamConnectorTls, UpstreamError> {
        let host = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| UpstreamError::new("the host of an upstream with TLS must be a host name or an IP address"))?;
        let mut config = ClientConfig::clone(&self.0);
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(UpstreamConnectorTls { config: Arc::new(config), name })
    }
}

impl UpstreamConnectorTls {
    /// Shakes hands with the upstream, which must prove to be the host of its address.
    pub(super) async fn connect<I: AsyncRead + AsyncWrite + Unpin>(&self, stream: I) -> std::io::Result<TlsStream<I>> {
        TlsConnector::from(Arc::clone(&self.config)).connect(self.name.clone(), stream).await
    }
}

fn roots_of(file: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots.add(certificate).map_err(|error| TlsError::new(file, error.to_string()))?;
    }
    Ok(roots)
}

fn system_roots() -> Result<RootCertStore, TlsError> {
    let loaded = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(loaded.certs);
    if roots.is_empty() {
        let reason = loaded.errors.first().map_or_else(|| "there are none".to_owned(), ToString::to_string);
        return Err(TlsError::new(Path::new("the certificate authorities of the system"), reason));
    }
    Ok(roots)
}

impl fmt::Debug for UpstreamTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamTls").finish_non_exhaustive()
    }
}

impl fmt::Debug for UpstreamConnectorTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamConnectorTls").field("name", &self.name).finish_non_exhaustive()
    }
}
