//! The CPU time of a request: the least of several rounds, in which all servers take turns.

use tidegate_server::command::{Failure, Output};

use super::Bench;
use super::launcher::ServerUnderTest;
use super::load;
use super::request_template::RequestTemplate;

/// A server with its requests, and how many are under way.
pub(super) struct Contender<'s> {
    pub(super) server: &'s ServerUnderTest,
    pub(super) template: &'s RequestTemplate,
    /// Clients, each with connections of its own.
    pub(super) clients: u16,
    /// Requests under way of each client.
    pub(super) requests: u16,
}

impl Contender<'_> {
    async fn measure_round(&self, requests: u64) -> Result<[f64; 2], Failure> {
        let failed = |reason: String| self.server.no_figures(reason);
        let mut connections = Vec::new();
        for _ in 0..self.clients {
            connections.extend(load::open_warm_connections(self.template, self.requests).await.map_err(failed)?);
        }
        let before = self.server.spent()?;
        load::closed_loop(connections, self.template, requests).await.map_err(failed)?;
        self.server.micros_since(before, requests)
    }
}

/// Microseconds of each server, and of its Redis server, in the best round of both together.
pub(super) async fn measure(
    bench: &Bench<'_>,
    contenders: &[Contender<'_>],
    output: &mut Output<'_>,
) -> Result<Vec<[f64; 2]>, Failure> {
    let mut best = vec![[f64::MAX; 2]; contenders.len()];
    for round in 1..=bench.arguments.rounds {
        for (contender, best) in contenders.iter().zip(&mut best) {
            output.progress(format_args!("round {round} of {}: {}", bench.arguments.rounds, contender.server.title));
            let micros = contender.measure_round(bench.arguments.requests).await?;
            if micros.iter().sum::<f64>() < best.iter().sum() {
                *best = micros;
            }
        }
    }
    Ok(best)
}
