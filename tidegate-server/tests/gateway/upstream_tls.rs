//! Upstreams with TLS: the authorities that the gateway accepts, the certificate that it sends, and its log of failures.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Once};
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tempfile::TempDir;
use tidegate::ManualClock;
use tidegate_server::gateway::{Gateway, GatewayOptions, UpstreamTls, UpstreamTlsFiles};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, split};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::gateway::upgrades::{UPGRADE_REQUEST, UPGRADE_RESPONSE};
use crate::gateway::{RawConnection, START, get, limits, listener, mirror};

/// A certificate authority, whose certificates are in files.
pub(crate) struct Authority {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let (folder, key) = (tempfile::tempdir().unwrap(), KeyPair::generate().unwrap());
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Each has a name of its own, by which it is looked up.
        params.distinguished_name.push(DnType::CommonName, folder.path().display().to_string());
        std::fs::write(folder.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { folder, issuer: Issuer::new(params, key) }
    }

    fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// The files of a certificate for `name` and its key.
    fn certificate(&self, name: &str, usage: ExtendedKeyUsagePurpose) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.extended_key_usages = vec![usage];
        let file = |extension: &str| self.folder.path().join(format!("{name}.{extension}"));
        std::fs::write(file("pem"), params.signed_by(&key, &self.issuer).unwrap().pem()).unwrap();
        std::fs::write(file("key"), key.serialize_pem()).unwrap();
        (file("pem"), file("key"))
    }

    /// The configuration of a server with a certificate for `name`; `clients` must have signed those of its clients.
    pub(crate) fn server(&self, name: &str, protocol: &[u8], clients: Option<&Self>) -> Arc<ServerConfig> {
        let (certificate, key) = self.certificate(name, ExtendedKeyUsagePurpose::ServerAuth);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots.add(CertificateDer::from_pem_file(authority.ca()).unwrap()).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
                builder.with_client_cert_verifier(verifier)
            }
        };
        let certificates = vec![CertificateDer::from_pem_file(certificate).unwrap()];
        let mut config = builder.with_single_cert(certificates, PrivateKeyDer::from_pem_file(key).unwrap()).unwrap();
        config.alpn_protocols = vec![protocol.to_vec()];
        Arc::new(config)
    }

    pub(crate) fn files(&self) -> UpstreamTlsFiles {
        UpstreamTlsFiles::new().with_ca(self.ca())
    }
}

/// Accepts TLS connections. One whose handshake fails stays open until the client has read why.
pub(crate) async fn accept<F>(
    config: Arc<ServerConfig>,
    serve: impl Fn(TlsStream<tokio::net::TcpStream>) -> F + Send + 'static,
) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            match TlsAcceptor::from(Arc::clone(&config)).accept(stream).into_fallible().await {
                Ok(stream) => drop(tokio::spawn(serve(stream))),
                Err((_, mut stream)) => {
                    tokio::spawn(async move { while stream.read(&mut [0; 1024]).await.is_ok_and(|read| read > 0) {} });
                }
            }
        }
    });
    address
}

/// An upstream that returns the request it received, with the name that the client asked for in the handshake.
async fn upstream(config: Arc<ServerConfig>) -> SocketAddr {
    accept(config, async |stream| {
        let name = stream.get_ref().1.server_name().map(str::to_owned);
        let app: Router =
            mirror().layer(axum::middleware::map_response(move |mut response: axum::response::Response| {
                let name = name.clone().unwrap_or_default();
                response.headers_mut().insert("x-server-name", name.parse().unwrap());
                std::future::ready(response)
            }));
        let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
        let _ = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(app)).await;
    })
    .await
}

async fn gateway(upstream: &str, files: &UpstreamTlsFiles, options: GatewayOptions) -> SocketAddr {
    let tls = UpstreamTls::load(files).unwrap();
    let gateway = Gateway::with_tls(&upstream.parse().unwrap(), &tls, options).unwrap();
    let listener = listener().await;
    let address = listener.address().unwrap();
    let layer = limits([], &ManualClock::starting_at(START));
    tokio::spawn(gateway.serve(listener, layer, std::future::pending()));
    address
}

/// The response to one request, and what was logged.
async fn get_logged(upstream: &str, files: &UpstreamTlsFiles) -> (String, String) {
    capture_log();
    let gateway = gateway(upstream, files, GatewayOptions::new()).await;
    let response = get(gateway, "/secret-path", "authorization: secret-token\r\n").await;
    let log = String::from_utf8(LOG.take()).unwrap();
    assert!(!log.contains("secret"), "{log}");
    (response, log)
}

thread_local! {
    /// What the test of this thread has logged: all of its tasks run on it.
    static LOG: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Begins to capture warnings. One subscriber for all tests: whether an event is enabled is cached for the whole process.
fn capture_log() {
    static SUBSCRIBER: Once = Once::new();
    SUBSCRIBER.call_once(|| {
        let format = tracing_subscriber::fmt().without_time().with_ansi(false).with_max_level(tracing::Level::WARN);
        tracing::subscriber::set_global_default(format.with_writer(|| LogWriter).finish()).unwrap();
    });
    LOG.take();
}

struct LogWriter;

impl io::Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.with_borrow_mut(|log| log.extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn an_upstream_with_a_certificate_of_a_trusted_ca_gets_its_own_name_as_host() {
    let authority = Authority::new();
    for (scheme, protocol) in [("https", "http/1.1"), ("h2", "h2")] {
        let upstream = upstream(authority.server("localhost", protocol.as_bytes(), None)).await;
        let address = format!("{scheme}://localhost:{}", upstream.port());
        let gateway = gateway(&address, &authority.files(), GatewayOptions::new()).await;
        let response = get(gateway, "/a?b=c", "").await;
        assert!(response.starts_with("HTTP/1.1 200 ") && response.contains("/a?b=c"), "{response}");
        assert!(response.contains("x-server-name: localhost\r\n"), "{response}");
        assert!(!response.contains("\nhost: shop.example"), "{response}");
        assert!(response.contains("x-forwarded-host: shop.example"), "{response}");
        assert_eq!(
            response.contains(&format!("\nhost: localhost:{}", upstream.port())),
            scheme == "https",
            "{response}"
        );
    }
}

#[tokio::test]
async fn the_certificate_of_an_upstream_can_be_for_an_ip_address() {
    let authority = Authority::new();
    let upstream = upstream(authority.server("127.0.0.1", b"http/1.1", None)).await;
    let gateway = gateway(&format!("https://{upstream}"), &authority.files(), GatewayOptions::new()).await;
    assert!(get(gateway, "/", "").await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn an_upstream_that_is_not_trusted_gives_502_and_the_log_says_why() {
    let (authority, other) = (Authority::new(), Authority::new());
    let trusted = upstream(authority.server("localhost", b"http/1.1", None)).await.port();
    let misnamed = upstream(authority.server("elsewhere.example", b"http/1.1", None)).await.port();
    let plain = crate::gateway::serve(mirror()).await.port();
    for (port, files, reason) in [
        (trusted, other.files(), "UnknownIssuer"),
        (misnamed, authority.files(), "not valid for name"),
        (plain, authority.files(), "InvalidContentType"),
    ] {
        let (response, log) = get_logged(&format!("https://localhost:{port}"), &files).await;
        assert!(response.starts_with("HTTP/1.1 502 "), "{response}");
        assert!(response.contains("upstream_unreachable") && !response.contains(reason), "{response}");
        let start = format!("the upstream https://localhost:{port} gave no response: ");
        assert!(log.contains(&start) && log.contains(reason), "{reason}: {log}");
    }
}

#[tokio::test]
async fn an_upstream_that_requires_a_certificate_of_its_clients_gets_it() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let upstream = upstream(authority.server("localhost", b"http/1.1", Some(&clients))).await;
    let address = format!("https://localhost:{}", upstream.port());
    let (response, log) = get_logged(&address, &authority.files()).await;
    assert!(response.starts_with("HTTP/1.1 502 "), "{response}");
    assert!(log.contains("CertificateRequired"), "{log}");
    let (certificate, key) = clients.certificate("gateway", ExtendedKeyUsagePurpose::ClientAuth);
    let files = authority.files().with_client_certificate(certificate, key);
    let (response, log) = get_logged(&address, &files).await;
    assert!(response.starts_with("HTTP/1.1 200 ") && log.is_empty(), "{response} {log}");
    let (certificate, key) = authority.certificate("stranger", ExtendedKeyUsagePurpose::ClientAuth);
    let (response, log) = get_logged(&address, &authority.files().with_client_certificate(certificate, key)).await;
    assert!(response.starts_with("HTTP/1.1 502 ") && log.contains("alert"), "{response} {log}");
}

/// Without a timeout, it would hold the permit of its connection for ever.
#[tokio::test]
async fn an_upstream_that_does_not_finish_its_handshake_gives_502() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("https://{}", silent.local_addr().unwrap());
    let options =
        GatewayOptions::new().with_connect_timeout(Duration::from_millis(50)).with_max_upstream_connections(1);
    let gateway = gateway(&address, &Authority::new().files(), options).await;
    for _ in 0..2 {
        assert!(get(gateway, "/", "").await.starts_with("HTTP/1.1 502 "));
    }
}

#[tokio::test]
async fn a_web_socket_carries_bytes_both_ways_over_tls() {
    let authority = Authority::new();
    let upstream = accept(authority.server("localhost", b"http/1.1", None), async |mut stream| {
        let mut received = Vec::new();
        while !received.ends_with(b"\r\n\r\n") {
            received.push(stream.read_u8().await.unwrap());
        }
        stream.write_all(UPGRADE_RESPONSE.as_bytes()).await.unwrap();
        let (mut reader, mut writer) = split(stream);
        let _ = copy(&mut reader, &mut writer).await;
    })
    .await;
    let address = format!("https://localhost:{}", upstream.port());
    let gateway = gateway(&address, &authority.files(), GatewayOptions::new()).await;
    let mut connection = RawConnection::connect(gateway).await;
    connection.send(UPGRADE_REQUEST).await;
    connection.receive_until("\r\n\r\n").await;
    for frame in ["\u{1}first", "\u{2}second"] {
        connection.send(frame).await;
        connection.receive_until(frame).await;
    }
}
