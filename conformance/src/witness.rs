//! `Witness`: measures from outside how quickly a store answers. A promise that holds "while the store answers within its timeout" is
//! asserted only if it did: a machine may be too busy to run the server itself for that long.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::proxy::own_thread;

const PING_INTERVAL: Duration = Duration::from_millis(2);
const PING: &[u8] = b"PING\r\n";
const PONG_BYTES: usize = b"+PONG\r\n".len();

/// A pause may begin just after a `PING` was answered, and timers have a resolution of a millisecond.
const ACCURACY: Duration = Duration::from_millis(3);

/// Sends `PING` to a server every two milliseconds, on a thread of its own, until it is dropped.
#[derive(Debug)]
pub struct Witness {
    slowest_micros: Arc<AtomicU64>,
    thread: Option<Runtime>,
}

impl Witness {
    /// Watches the server, or the proxy, on local port `port`. Returns once it has answered.
    pub async fn start(port: u16) -> Self {
        let (thread, slowest_micros) = (own_thread("witness"), Arc::new(AtomicU64::new(0)));
        let slowest = Arc::clone(&slowest_micros);
        let connected = thread.spawn(async move {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
            stream.set_nodelay(true)?;
            stream.write_all(PING).await?;
            stream.read_exact(&mut [0; PONG_BYTES]).await?;
            io::Result::Ok(stream)
        });
        let stream = connected.await.unwrap().expect("a store that answers");
        thread.spawn(async move {
            let _ = watch(stream, &slowest).await;
            // A broken connection is no answer.
            slowest.store(u64::MAX / 2, Ordering::SeqCst);
        });
        Self { slowest_micros, thread: Some(thread) }
    }

    /// Watches several servers.
    pub async fn start_all(ports: impl IntoIterator<Item = u16>) -> Vec<Self> {
        let mut witnesses = Vec::new();
        for port in ports {
            witnesses.push(Self::start(port).await);
        }
        witnesses
    }

    /// The slowest answer so far, or the longest time for which this thread did not run.
    pub fn slowest_answer(&self) -> Duration {
        Duration::from_micros(self.slowest_micros.load(Ordering::SeqCst))
    }

    /// Whether every answer so far surely came within `timeout`.
    pub fn saw_answers_within(&self, timeout: Duration) -> bool {
        self.slowest_answer() + ACCURACY < timeout
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.shutdown_background();
        }
    }
}

async fn watch(mut stream: TcpStream, slowest_micros: &AtomicU64) -> io::Result<()> {
    let record = |since: Instant| slowest_micros.fetch_max(since.elapsed().as_micros() as u64, Ordering::SeqCst);
    let (mut unanswered, mut received, mut buffer) = (VecDeque::new(), 0, [0; 4096]);
    let mut pace = interval(PING_INTERVAL);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            due = pace.tick() => {
                record(due);
                // A server that has stopped answering shows before its answer comes.
                unanswered.front().copied().map(record);
                stream.write_all(PING).await?;
                unanswered.push_back(Instant::now());
            }
            read = stream.read(&mut buffer) => {
                let length = read?;
                if length == 0 {
                    return Ok(());
                }
                received += length;
                while received >= PONG_BYTES {
                    received -= PONG_BYTES;
                    unanswered.pop_front().map(record);
                }
            }
        }
    }
}
