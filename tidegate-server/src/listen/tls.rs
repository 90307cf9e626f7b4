//! `Tls`: the server's certificate and the authorities of client certificates, read from files. A reload that fails changes
//! nothing.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoClientAuth, WebPkiClientVerifier, danger::ClientCertVerifier};
use rustls::{RootCertStore, ServerConfig};
use tidegate::sync::RwLock;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Paths of PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsFiles {
    /// The server's certificate, followed by its intermediates.
    pub certificate: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// Authorities of client certificates. If set, clients must present a certificate that one of them signed.
    pub client_ca: Option<PathBuf>,
}

/// The TLS configuration of a listener. Clones share it.
#[derive(Clone)]
pub struct Tls {
    files: TlsFiles,
    current: Arc<RwLock<Arc<ServerConfig>>>,
}

/// Certificate files that cannot be used.
#[derive(Debug)]
pub struct TlsError {
    file: PathBuf,
    problem: String,
}

impl Tls {
    /// Reads the files.
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let server_config = Arc::new(server_config(&files)?);
        Ok(Self { files, current: Arc::new(RwLock::new(server_config)) })
    }

    /// Reads the files again.
    pub fn read(&self) -> Result<Arc<ServerConfig>, TlsError> {
        server_config(&self.files).map(Arc::new)
    }

    /// Uses this for new connections.
    pub fn replace(&self, server_config: Arc<ServerConfig>) {
        *self.current.write() = server_config;
    }

    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let server_config = Arc::clone(&self.current.read());
        TlsAcceptor::from(server_config).accept(stream).await
    }
}

impl TlsFiles {
    /// A certificate and its key; clients need no certificate.
    pub fn new(certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        Self { certificate: certificate.into(), key: key.into(), client_ca: None }
    }

    /// Requires client certificates that an authority in this file signed.
    #[must_use]
    pub fn with_client_ca(mut self, file: impl Into<PathBuf>) -> Self {
        self.client_ca = Some(file.into());
        self
    }
}

fn server_config(files: &TlsFiles) -> Result<ServerConfig, TlsError> {
    let certificates = certificates(&files.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| TlsError::unreadable(&files.key, "a private key", &error))?;
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| TlsError::new(&files.certificate, error.to_string()))?;
    let builder = builder.with_client_cert_verifier(verifier(files.client_ca.as_deref())?);
    let server_config = builder.with_single_cert(certificates, key);
    let mut server_config = server_config.map_err(|error| {
        TlsError::new(&files.certificate, format!("{error}; does it belong to {}?", files.key.display()))
    })?;
    server_config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(server_config)
}

/// The certificates in a file, at least one.
pub(crate) fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let result = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match result {
        Ok(list) if list.is_empty() => Err(TlsError::unreadable(file, "a certificate", &pem::Error::NoItemsFound)),
        Ok(list) => Ok(list),
        Err(error) => Err(TlsError::unreadable(file, "a certificate", &error)),
    }
}

fn verifier(client_ca: Option<&Path>) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let Some(file) = client_ca else { return Ok(Arc::new(NoClientAuth)) };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots.add(certificate).map_err(|error| TlsError::new(file, error.to_string()))?;
    }
    let provider = Arc::new(ring::default_provider());
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| TlsError::new(file, error.to_string()))
}

impl TlsError {
    pub(crate) fn new(file: &Path, problem: String) -> Self {
        Self { file: file.to_owned(), problem }
    }

    /// Reports only the kind of error: the library's message may quote parts of a key.
    pub(crate) fn unreadable(file: &Path, expected: &str, error: &pem::Error) -> Self {
        let problem = match error {
            pem::Error::Io(error) => error.to_string(),
            pem::Error::NoItemsFound => format!("the file does not contain {expected}; it must be PEM"),
            _ => format!("this is not PEM with {expected}"),
        };
        Self::new(file, problem)
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file.display(), self.problem)
    }
}

impl std::error::Error for TlsError {}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("files", &self.files).finish_non_exhaustive()
    }
}
