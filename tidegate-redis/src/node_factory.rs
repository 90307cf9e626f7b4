//! `NodeFactory`: makes the [`Node`]s of one store, which share credentials, TLS settings and options.

use std::sync::Arc;

use redis::io::tcp::TcpSettings;
use redis::{Client, ConnectionAddr, ConnectionInfo, RedisConnectionInfo, TlsCertificates};
use tidegate::{StoreError, StoreErrorKind};

use crate::address::Address;
use crate::connector::Endpoint;
use crate::error::store_error;
use crate::node::Node;
use crate::options::RedisOptions;
use crate::store_url::StoreUrl;
use crate::timeouts::Timeouts;

/// Makes the nodes of one store.
#[derive(Clone)]
pub(crate) struct NodeFactory {
    info: ConnectionInfo,
    /// The CA certificates to trust, as PEM. `None` trusts those of the system.
    ca: Option<Arc<[u8]>>,
    options: RedisOptions,
}

impl NodeFactory {
    /// Reads the CA file, if `url` names one.
    pub(crate) fn new(url: &StoreUrl, options: &RedisOptions) -> Result<Self, StoreError> {
        let info = url.info.clone().set_tcp_settings(TcpSettings::default().set_nodelay(true));
        let ca = url.ca.as_deref().map(read_ca).transpose()?;
        if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            // The client library uses the process-wide crypto provider, and panics if two are compiled in and none is
            // installed. A provider that the application has installed stays.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        Ok(Self { info, ca, options: options.clone() })
    }

    /// The same factory with other credentials.
    pub(crate) fn with_credentials(mut self, credentials: RedisConnectionInfo) -> Self {
        self.info = self.info.set_redis_settings(credentials);
        self
    }

    /// The first server of the URL. Nothing is connected yet.
    pub(crate) fn first_node(&self) -> Result<Node, StoreError> {
        self.node(self.info.clone())
    }

    /// The server at `address`. Nothing is connected yet.
    pub(crate) fn node_at(&self, address: &Address) -> Result<Node, StoreError> {
        let (host, port) = (address.host.clone(), address.port);
        let addr = match self.info.addr() {
            ConnectionAddr::TcpTls { .. } => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
            _ => ConnectionAddr::Tcp(host, port),
        };
        self.node(self.info.clone().set_addr(addr))
    }

    /// The timeouts of topology queries.
    pub(crate) fn topology_timeouts(&self) -> Timeouts {
        Timeouts::for_topology(&self.options)
    }

    fn node(&self, info: ConnectionInfo) -> Result<Node, StoreError> {
        let address = info.addr().to_string();
        let client = match &self.ca {
            Some(ca) => {
                let certificates = TlsCertificates { client_tls: None, root_cert: Some(ca.to_vec()) };
                Client::build_with_tls(info, certificates)
            }
            None => Client::open(info),
        };
        let client = client.map_err(|error| store_error(&error))?;
        Ok(Node::new(&address, Endpoint::Server(Box::new(client)), &self.options))
    }
}

fn read_ca(path: &str) -> Result<Arc<[u8]>, StoreError> {
    let unusable = |reason: String| {
        let message = format!("the CA file of the store, {path:?}, cannot be used: {reason}");
        StoreError::new(StoreErrorKind::Unexpected, message)
    };
    let pem = std::fs::read(path).map_err(|error| unusable(error.to_string()))?;
    if !pem.windows(27).any(|window| window == b"-----BEGIN CERTIFICATE-----") {
        return Err(unusable("there is no certificate in it; it must be PEM".to_owned()));
    }
    Ok(pem.into())
}
