//! TLS to a server: which certificates are trusted.

use std::io;
use std::sync::Arc;

use redis::{ErrorKind, RedisError, RedisResult};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The certificates that are trusted: those of the system, or those of a CA file.
#[derive(Clone)]
pub(crate) struct TrustedCertificates(Option<RootCertStore>);

impl TrustedCertificates {
    /// Those of the system, which are read for each connection, since they may be renewed.
    pub(crate) const fn of_system() -> Self {
        Self(None)
    }

    /// Those in `pem`; the error says why they cannot be used.
    pub(crate) fn from_pem(pem: &[u8]) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|error| format!("it is not PEM ({error})"))?;
            roots.add(certificate).map_err(|error| format!("a certificate in it is invalid ({error})"))?;
        }
        if roots.is_empty() {
            return Err("there is no certificate in it; it must be PEM".to_owned());
        }
        Ok(Self(Some(roots)))
    }

    /// Shakes hands with the server at the other end of `stream`, which must prove to be `host`.
    pub(crate) async fn connect(&self, host: &str, stream: TcpStream) -> RedisResult<TlsStream<TcpStream>> {
        let roots = match &self.0 {
            Some(roots) => roots.clone(),
            None => system_roots()?,
        };
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| RedisError::from((ErrorKind::InvalidClientConfig, "the host name is not one for TLS")))?;
        Ok(TlsConnector::from(Arc::new(config)).connect(name, stream).await?)
    }
}

fn system_roots() -> RedisResult<RootCertStore> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    match found.errors.into_iter().next() {
        Some(error) if roots.is_empty() => Err(io::Error::other(error.to_string()).into()),
        _ => Ok(roots),
    }
}
