//! `Connector`: makes connections to one server. It keeps none of them.

use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Client, RedisResult};

use crate::options::RedisOptions;
use crate::timeouts::Timeouts;

/// The driver's own queue is never larger than this, whatever the limit of calls in flight.
const MAX_PIPELINE_BUFFER_COMMANDS: usize = 1 << 16;

/// Makes connections to one server.
pub(crate) struct Connector {
    endpoint: Endpoint,
    config: AsyncConnectionConfig,
    /// How long the first `PING` on a connection may take.
    ping_timeout: Duration,
}

/// What is connected to.
pub(crate) enum Endpoint {
    Server(Box<Client>),
    /// A server that exists only in the simulation.
    #[cfg(test)]
    Simulated(std::sync::Arc<crate::simulation::SimulatedServer>),
}

impl Connector {
    pub(crate) fn new(endpoint: Endpoint, options: &RedisOptions) -> Self {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(options.connection_timeout))
            // Each call sets its own.
            .set_response_timeout(None)
            .set_pipeline_buffer_size(options.max_in_flight.min(MAX_PIPELINE_BUFFER_COMMANDS));
        Self { endpoint, config, ping_timeout: Timeouts::for_decision(options.timeout).response }
    }

    /// Makes a connection and waits until it has answered a `PING`. An error reply counts too: the server may be
    /// loading, or forbid the command.
    pub(crate) async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        let mut connection = match &self.endpoint {
            Endpoint::Server(client) => client.get_multiplexed_async_connection_with_config(&self.config).await?,
            #[cfg(test)]
            Endpoint::Simulated(server) => crate::simulation::SimulatedServer::connect(server, &self.config).await?,
        };
        connection.set_response_timeout(self.ping_timeout);
        match connection.req_packed_command(&redis::cmd("PING")).await {
            Err(error) if error.code().is_none() => Err(error),
            _ => Ok(connection),
        }
    }
}
