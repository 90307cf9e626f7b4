//! `Connector`: opens connections to one server. It keeps none of them.

use std::io;
use std::time::Duration;

use redis::{ConnectionInfo, RedisResult};

use crate::handshake::shake_hands;
use crate::options::RedisOptions;
use crate::server_link::ServerLink;
use crate::server_stream::ServerStream;
use crate::timer;
use crate::tls::TrustedCertificates;

/// Opens connections to one server.
pub(crate) struct Connector {
    endpoint: Endpoint,
    connection_timeout: Duration,
}

/// What is connected to.
pub(crate) enum Endpoint {
    Server {
        info: Box<ConnectionInfo>,
        trusted: TrustedCertificates,
    },
    /// A server that exists only in the simulation.
    #[cfg(test)]
    Simulated(std::sync::Arc<crate::simulation::SimulatedServer>),
}

impl Connector {
    pub(crate) fn new(endpoint: Endpoint, options: &RedisOptions) -> Self {
        Self { endpoint, connection_timeout: options.connection_timeout }
    }

    /// Opens a connection and exchanges the first commands. Whether the server answers scripts is not known yet.
    pub(crate) async fn connect(&self) -> RedisResult<ServerLink> {
        let connecting = async {
            match &self.endpoint {
                Endpoint::Server { info, trusted } => {
                    let mut link = ServerLink::new(ServerStream::open(info.addr(), trusted).await?);
                    shake_hands(&mut link, info.redis_settings()).await?;
                    Ok(link)
                }
                #[cfg(test)]
                Endpoint::Simulated(server) => Ok(ServerLink::new(server.connect().await?)),
            }
        };
        let timed_out = || Err(io::Error::from(io::ErrorKind::TimedOut).into());
        timer::timeout(self.connection_timeout, connecting).await.unwrap_or_else(timed_out)
    }

    /// How long a connection attempt and the first reply may take.
    pub(crate) const fn connection_timeout(&self) -> Duration {
        self.connection_timeout
    }
}
