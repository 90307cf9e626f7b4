//! `Tls`: the certificate of a server, and whose certificates it asks for. Read from files, and anew when told; a file that
//! cannot be used changes nothing.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoClientAuth, WebPkiClientVerifier, danger::ClientCertVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Where the certificates are, all of them PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate of the server, followed by those between it and its authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authorities of clients. With it, only clients that show a certificate of theirs are served.
    pub client_ca: Option<PathBuf>,
}

/// What a server shows, and asks for. Clones share it.
#[derive(Clone)]
pub struct Tls {
    files: TlsFiles,
    current: Arc<RwLock<Arc<ServerConfig>>>,
    /// The files as they were read last, whether they could be used or not.
    seen: Arc<Mutex<Vec<Option<Vec<u8>>>>>,
}

/// Why files cannot be used.
#[derive(Debug)]
pub struct TlsError {
    file: PathBuf,
    problem: String,
}

impl Tls {
    /// Reads the files.
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let config = Arc::new(config(&files)?);
        let seen = Arc::new(Mutex::new(files.contents()));
        Ok(Self { files, current: Arc::new(RwLock::new(config)), seen })
    }

    /// Whether a file has changed since this was asked, or since they were first read.
    pub fn is_changed(&self) -> bool {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *seen, self.files.contents());
        before != *seen
    }

    /// Reads the files anew, for all connections from now on. If they cannot be used, nothing changes.
    pub fn reload(&self) -> Result<(), TlsError> {
        let config = Arc::new(config(&self.files)?);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// Where it reads from.
    pub const fn files(&self) -> &TlsFiles {
        &self.files
    }

    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let config = Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner));
        TlsAcceptor::from(config).accept(stream).await
    }
}

impl TlsFiles {
    fn contents(&self) -> Vec<Option<Vec<u8>>> {
        [&self.certificate, &self.key].into_iter().chain(&self.client_ca).map(|file| std::fs::read(file).ok()).collect()
    }
}

fn config(files: &TlsFiles) -> Result<ServerConfig, TlsError> {
    let certificates = certificates(&files.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| TlsError::unreadable(&files.key, "a private key", &error))?;
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| TlsError::new(&files.certificate, error.to_string()))?;
    let builder = builder.with_client_cert_verifier(verifier(files.client_ca.as_deref())?);
    let config = builder.with_single_cert(certificates, key);
    let mut config = config.map_err(|error| {
        TlsError::new(&files.certificate, format!("{error}; does it belong to {}?", files.key.display()))
    })?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(found) if found.is_empty() => Err(TlsError::unreadable(file, "a certificate", &pem::Error::NoItemsFound)),
        Ok(found) => Ok(found),
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
    fn new(file: &Path, problem: String) -> Self {
        Self { file: file.to_owned(), problem }
    }

    /// What the library says of a file may repeat parts of it, which may be a key: only what kind of error it is is told.
    fn unreadable(file: &Path, wanted: &str, error: &pem::Error) -> Self {
        let problem = match error {
            pem::Error::Io(error) => error.to_string(),
            pem::Error::NoItemsFound => format!("there is not {wanted} in it; it must be PEM"),
            _ => format!("this is not PEM with {wanted}"),
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
