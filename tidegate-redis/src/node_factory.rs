//! `NodeFactory`: makes the [`RedisNode`]s of one store, which share credentials, TLS settings and options.

use redis::{ConnectionAddr, ConnectionInfo, RedisConnectionInfo};
use tidegate::{StoreError, StoreErrorKind};

use crate::address::Address;
use crate::connector::Endpoint;
use crate::node::RedisNode;
use crate::options::RedisOptions;
use crate::store_url::{RedisUrl, Topology};
use crate::timeouts::Timeouts;
use crate::tls::TrustedCertificates;

/// Makes the nodes of one store.
#[derive(Clone)]
pub(crate) struct NodeFactory {
    info: ConnectionInfo,
    trusted: TrustedCertificates,
    options: RedisOptions,
    /// Whether plans of several slots may be in one batch.
    combines_slots: bool,
}

impl NodeFactory {
    /// Reads the CA file, if `url` names one.
    pub(crate) fn new(url: &RedisUrl, options: &RedisOptions) -> Result<Self, StoreError> {
        let info = url.info.clone();
        let trusted = url.ca.as_deref().map_or(Ok(TrustedCertificates::of_system()), read_ca)?;
        if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            // TLS uses the process-wide crypto provider, and panics if two are compiled in and none is installed. A provider
            // that the application has installed stays.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let combines_slots = !matches!(url.topology, Topology::Cluster);
        Ok(Self { info, trusted, options: options.clone(), combines_slots })
    }

    /// The same factory with other credentials.
    pub(crate) fn with_credentials(mut self, credentials: RedisConnectionInfo) -> Self {
        self.info = self.info.set_redis_settings(credentials);
        self
    }

    /// The first server of the URL. Nothing is connected yet.
    pub(crate) fn first_node(&self) -> RedisNode {
        self.node(self.info.clone())
    }

    /// The server at `address`. Nothing is connected yet.
    pub(crate) fn node_at(&self, address: &Address) -> RedisNode {
        let (host, port) = (address.host.clone(), address.port);
        let addr = match self.info.addr() {
            ConnectionAddr::TcpTls { .. } => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
            _ => ConnectionAddr::Tcp(host, port),
        };
        self.node(self.info.clone().set_addr(addr))
    }

    /// The timeouts of topology queries.
    pub(crate) fn topology_timeouts(&self) -> Timeouts {
        Timeouts::for_background(&self.options)
    }

    fn node(&self, info: ConnectionInfo) -> RedisNode {
        let address = info.addr().to_string();
        let endpoint = Endpoint::Server { info: Box::new(info), trusted: self.trusted.clone() };
        RedisNode::new(&address, endpoint, &self.options, self.combines_slots)
    }
}

fn read_ca(path: &str) -> Result<TrustedCertificates, StoreError> {
    let unusable = |reason: String| {
        let message = format!("the CA file of the store, {path:?}, cannot be used: {reason}");
        StoreError::new(StoreErrorKind::Unexpected, message)
    };
    let pem = std::fs::read(path).map_err(|error| unusable(error.to_string()))?;
    TrustedCertificates::from_pem(&pem).map_err(unusable)
}
