//! TLS: client certificates, reloading, and errors of certificate files.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tempfile::TempDir;

use crate::serve::Running;

/// A certificate authority.
struct Authority {
    certificate: rcgen::Certificate,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key.
struct Identity {
    certificate: rcgen::Certificate,
    key: KeyPair,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        Self { certificate, issuer: Issuer::new(params, key) }
    }

    fn issue(&self, purpose: ExtendedKeyUsagePurpose) -> Identity {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.extended_key_usages = vec![purpose];
        Identity { certificate: params.signed_by(&key, &self.issuer).unwrap(), key }
    }

    fn server(&self) -> Identity {
        self.issue(ExtendedKeyUsagePurpose::ServerAuth)
    }

    fn client(&self) -> Identity {
        self.issue(ExtendedKeyUsagePurpose::ClientAuth)
    }
}

impl Identity {
    fn write(&self, folder: &Path) {
        fs::write(folder.join("key.pem"), self.key.serialize_pem()).unwrap();
        fs::write(folder.join("cert.pem"), self.certificate.pem()).unwrap();
    }
}

/// Sends `text` to `address` over TLS, and returns the response and the server's certificate.
fn exchange(
    address: &str,
    authority: &Authority,
    client: Option<&Identity>,
    text: &str,
) -> std::io::Result<(Vec<u8>, CertificateDer<'static>)> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.certificate.der().clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
    let mut config = match client {
        None => config.with_no_client_auth(),
        Some(client) => {
            let key = PrivateKeyDer::try_from(client.key.serialize_der()).unwrap();
            config.with_client_auth_cert(vec![client.certificate.der().clone()], key).unwrap()
        }
    };
    config.alpn_protocols = vec![if text == HTTP2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
    let connection = ClientConnection::new(Arc::new(config), ServerName::try_from("localhost").unwrap()).unwrap();
    let mut stream = StreamOwned::new(connection, TcpStream::connect(address)?);
    stream.write_all(text.as_bytes())?;
    stream.flush()?;
    let mut response = vec![0; 12];
    stream.read_exact(&mut response)?;
    Ok((response, stream.conn.peer_certificates().unwrap()[0].clone().into_owned()))
}

const REQUEST: &str = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

/// The start of an HTTP/2 connection: the preface and an empty SETTINGS frame.
const HTTP2: &str = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

fn folder(authority: &Authority) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    authority.server().write(folder.path());
    folder
}

fn start(folder: &TempDir, more: &[&str]) -> Running {
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (certificate, key) = (path("cert.pem"), path("key.pem"));
    let tls = ["--tls-cert", &certificate, "--tls-key", &key];
    Running::start(&[&tls, more].concat())
}

#[test]
fn all_addresses_but_the_admin_address_use_tls() {
    let authority = Authority::new();
    let folder = folder(&authority);
    let server = start(&folder, &[]);
    let (response, _) = exchange(&server.http, &authority, None, REQUEST).unwrap();
    assert_eq!(response, b"HTTP/1.1 200");
    // An HTTP/2 server begins with its settings: a frame of type 4.
    let (response, _) = exchange(&server.grpc, &authority, None, HTTP2).unwrap();
    assert_eq!(response[3], 4);
    assert_eq!(crate::serve::ask(&server.admin, "GET", "/metrics", "").0, 200);
    let mut plain = TcpStream::connect(&server.http).unwrap();
    plain.write_all(REQUEST.as_bytes()).unwrap();
    let mut response = Vec::new();
    // A reset also ends the connection.
    let _ = plain.read_to_end(&mut response);
    assert!(!response.starts_with(b"HTTP"), "{response:?}");
}

#[test]
fn a_client_authority_requires_its_certificates_except_at_the_gateway() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let folder = folder(&authority);
    fs::write(folder.path().join("clients.pem"), clients.certificate.pem()).unwrap();
    let client_ca = folder.path().join("clients.pem").to_str().unwrap().to_owned();
    let gateway = ["--gateway", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1"];
    let server = start(&folder, &[&["--tls-client-ca", &client_ca], &gateway[..]].concat());
    let (known, unknown) = (clients.client(), authority.client());
    assert_eq!(exchange(&server.http, &authority, Some(&known), REQUEST).unwrap().0, b"HTTP/1.1 200");
    assert!(exchange(&server.http, &authority, Some(&unknown), REQUEST).is_err());
    assert!(exchange(&server.http, &authority, None, REQUEST).is_err());
    assert!(exchange(&server.grpc, &authority, Some(&known), HTTP2).is_ok());
    assert!(exchange(&server.grpc, &authority, None, HTTP2).is_err());
    // The gateway requires no certificate, and answers that its upstream cannot be reached.
    assert_eq!(exchange(&server.gateway, &authority, None, REQUEST).unwrap().0, b"HTTP/1.1 502");
}

#[test]
fn changed_certificates_are_loaded_and_broken_ones_are_not() {
    let authority = Authority::new();
    let folder = folder(&authority);
    let mut server = start(&folder, &[]);
    let (_, first) = exchange(&server.http, &authority, None, REQUEST).unwrap();
    let next = authority.server();
    next.write(folder.path());
    // The first of the two files may have been read before the second was there.
    server.wait_for_log("certificates reloaded");
    let (_, second) = exchange(&server.http, &authority, None, REQUEST).unwrap();
    assert_eq!((&second == next.certificate.der(), second == first), (true, false));
    fs::write(folder.path().join("cert.pem"), "hunter2").unwrap();
    let line = server.wait_for_log("certificates not reloaded, the old version stays: ");
    assert!(line.contains("cert.pem: ") && !line.contains("hunter2"), "{line}");
    assert_eq!(exchange(&server.http, &authority, None, REQUEST).unwrap().1, second);
    assert!(exchange(&server.grpc, &authority, None, HTTP2).is_ok());
}

/// Without `--upstream-ca`. The upstream is a second server, which the gateway reaches by `https://`.
#[test]
fn an_upstream_is_trusted_if_an_authority_of_the_system_has_signed_its_certificate() {
    let authority = Authority::new();
    let folder = folder(&authority);
    let upstream = start(&folder, &[]);
    let address = format!("https://localhost:{}", upstream.http.rsplit(':').next().unwrap());
    for (signer, status) in [(&authority, 200), (&Authority::new(), 502)] {
        let file = folder.path().join("system.pem");
        fs::write(&file, signer.certificate.pem()).unwrap();
        let mut command = crate::serve::serve(&["--gateway", "127.0.0.1:0", "--upstream", &address]);
        command.env("SSL_CERT_FILE", &file).env_remove("SSL_CERT_DIR");
        let gateway = Running::start_command(command);
        assert_eq!(crate::serve::ask(&gateway.gateway, "GET", "/healthz", "").0, status);
    }
    // Without any authority it does not start.
    fs::write(folder.path().join("system.pem"), "").unwrap();
    let mut command = crate::serve::serve(&["--gateway", "127.0.0.1:0", "--upstream", &address]);
    command.env("SSL_CERT_FILE", folder.path().join("system.pem")).env_remove("SSL_CERT_DIR");
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("the certificate authorities of the system: "), "{error}");
}

#[test]
fn errors_name_the_certificate_file() {
    let authority = Authority::new();
    let folder = folder(&authority);
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("empty.pem"), "").unwrap();
    let other = authority.server();
    fs::write(path("other.pem"), other.key.serialize_pem()).unwrap();
    let (certificate, key) = (path("cert.pem"), path("key.pem"));
    for (arguments, expected) in [
        (vec!["--tls-cert", &certificate], "--tls-cert needs --tls-key".to_owned()),
        (vec!["--tls-client-ca", &certificate], "--tls-client-ca needs --tls-cert and --tls-key".to_owned()),
        (
            vec!["--tls-cert", &path("none.pem"), "--tls-key", &key],
            format!("--tls-cert {}: No such file", path("none.pem")),
        ),
        (
            vec!["--tls-cert", &path("empty.pem"), "--tls-key", &key],
            format!("--tls-cert {}: the file does not contain a certificate", path("empty.pem")),
        ),
        (
            vec!["--tls-cert", &certificate, "--tls-key", &certificate],
            format!("{certificate}: the file does not contain a private key"),
        ),
        (vec!["--tls-cert", &certificate, "--tls-key", &path("other.pem")], format!("--tls-cert {certificate}: ")),
    ] {
        let error = crate::serve::refused(&arguments);
        assert!(error.starts_with(&format!("error: {expected}")), "{arguments:?}: {error}");
    }
}
