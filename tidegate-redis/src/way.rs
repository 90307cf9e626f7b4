//! `Way`: how a connection to one server is made. It makes one when told, and keeps none.

use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Client, RedisResult};

use crate::options::RedisOptions;
use crate::patience::Patience;

/// The way to one server.
pub(crate) struct Way {
    to: Destination,
    config: AsyncConnectionConfig,
    /// What an answer may take.
    answer: Duration,
}

/// Where it leads.
pub(crate) enum Destination {
    Server(Box<Client>),
    /// A server that only exists in a simulation.
    #[cfg(test)]
    Simulated(std::sync::Arc<crate::simulation::World>),
}

impl Way {
    /// The way there, as `options` say.
    pub(crate) fn new(to: Destination, options: &RedisOptions) -> Self {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(options.connection_timeout))
            // Each call brings its own.
            .set_response_timeout(None)
            .set_pipeline_buffer_size(options.most_in_flight.min(1 << 16));
        Self { to, config, answer: Patience::within(options.budget).answer }
    }

    /// Makes a connection, and waits for an answer on it.
    pub(crate) async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        let mut wire = match &self.to {
            Destination::Server(client) => client.get_multiplexed_async_connection_with_config(&self.config).await?,
            #[cfg(test)]
            Destination::Simulated(world) => crate::simulation::World::connect(world, &self.config).await?,
        };
        wire.set_response_timeout(self.answer);
        match wire.req_packed_command(&redis::cmd("PING")).await {
            Err(error) if error.code().is_none() => Err(error),
            // Also if it says that it is loading, or that we may not ask that: it speaks.
            _ => Ok(wire),
        }
    }
}
