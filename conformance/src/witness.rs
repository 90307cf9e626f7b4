//! `Witness`: measures from outside how quickly a store answers. A promise that holds "while the store answers within its timeout" is
//! asserted only if it did: a machine may be too busy to run the server itself for that long.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::proxy::own_thread;
use crate::suite::wait_until;

const PING_INTERVAL: Duration = Duration::from_millis(2);
const PING: &[u8] = b"PING\r\n";
const PONG_BYTES: usize = b"+PONG\r\n".len();

/// A pause may begin just after a `PING` was answered, and timers have a resolution of a millisecond.
const ACCURACY: Duration = Duration::from_millis(3);

/// Sends `PING` to a server every two milliseconds, on a thread of its own, until it is dropped.
#[derive(Debug)]
pub struct Witness {
    record: Arc<Mutex<WitnessRecord>>,
    thread: Option<Runtime>,
}

#[derive(Clone, Copy, Debug, Default)]
struct WitnessRecord {
    slowest: Duration,
    answers: u64,
    has_ended: bool,
}

impl Witness {
    /// Watches the server, or the proxy, on local port `port`. Returns once it has answered.
    pub async fn start(port: u16) -> Self {
        let (thread, record) = (own_thread("witness"), Arc::<Mutex<WitnessRecord>>::default());
        let recording = Arc::clone(&record);
        let connected = thread.spawn(async move {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
            stream.set_nodelay(true)?;
            stream.write_all(PING).await?;
            stream.read_exact(&mut [0; PONG_BYTES]).await?;
            io::Result::Ok(stream)
        });
        let stream = connected.await.unwrap().expect("a store that answers");
        thread.spawn(async move {
            let _ = watch(stream, &recording).await;
            recording.lock().unwrap().has_ended = true;
        });
        Self { record, thread: Some(thread) }
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
        self.record.lock().unwrap().slowest
    }

    /// Whether every answer until now surely came within `timeout`. A broken connection is no answer.
    pub async fn saw_answers_within(&self, timeout: Duration) -> bool {
        let record = || *self.record.lock().unwrap();
        let is_slow = || record().slowest + ACCURACY >= timeout || record().has_ended;
        // What is slow just now shows in one of the next two answers.
        let enough = record().answers + 2;
        wait_until("the server does not answer", || is_slow() || record().answers >= enough, String::new).await;
        !is_slow()
    }

    /// The same of several servers.
    pub async fn all_saw_answers_within(witnesses: &[Self], timeout: Duration) -> bool {
        join_all(witnesses.iter().map(|witness| witness.saw_answers_within(timeout)))
            .await
            .into_iter()
            .all(|within| within)
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.shutdown_background();
        }
    }
}

async fn watch(mut stream: TcpStream, recording: &Mutex<WitnessRecord>) -> io::Result<()> {
    let record = |since: Instant| {
        let mut record = recording.lock().unwrap();
        record.slowest = record.slowest.max(since.elapsed());
    };
    let (mut unanswered, mut received, mut buffer) = (VecDeque::new(), 0, [0; 4096]);
    let mut pace = interval(PING_INTERVAL);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            due = pace.tick() => {
                record(due);
                // A server that has stopped answering shows before its answer comes.
                unanswered.front().copied().into_iter().for_each(record);
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
                    unanswered.pop_front().into_iter().for_each(record);
                    recording.lock().unwrap().answers += 1;
                }
            }
        }
    }
}
