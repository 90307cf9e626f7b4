//! A certificate authority for tests, and servers with its certificates.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

use crate::server::{Kind, Server, free_port};

/// A certificate authority whose certificate is in a file.
#[derive(Debug)]
pub struct TestCa {
    directory: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

/// A server that listens with TLS on a second port beside its plain one.
#[derive(Debug)]
pub struct TlsServer {
    /// The server, for plain connections of the test.
    pub server: Server,
    port: u16,
}

impl TestCa {
    /// Creates an authority that keeps its files in `directory`.
    pub fn new(directory: &Path) -> Self {
        std::fs::create_dir_all(directory).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        std::fs::write(directory.join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { directory: directory.to_owned(), issuer: Issuer::new(params, key) }
    }

    pub fn ca(&self) -> String {
        self.directory.join("ca.pem").to_str().unwrap().to_owned()
    }

    /// Starts a server that shows a certificate for `host`.
    pub fn start(&self, kind: Kind, host: &str, arguments: &[&str]) -> TlsServer {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([host.to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let write = |name: &str, text: String| {
            let file = self.directory.join(name);
            std::fs::write(&file, text).unwrap();
            file.to_str().unwrap().to_owned()
        };
        let (certificate, key) = (write("cert.pem", certificate.pem()), write("key.pem", key.serialize_pem()));
        let (port, ca) = (free_port(), self.ca());
        let port_text = port.to_string();
        let files = ["--tls-cert-file", &certificate, "--tls-key-file", &key, "--tls-ca-cert-file", &ca];
        let tls = ["--tls-port", &port_text, "--tls-auth-clients", "no"];
        TlsServer { server: Server::start_with(kind, &[&tls[..], &files[..], arguments].concat()), port }
    }
}

impl TlsServer {
    /// Its address for TLS, under this name.
    pub fn address(&self, host: &str) -> String {
        format!("{host}:{}", self.port)
    }
}
