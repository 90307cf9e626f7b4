//! `Proxy`: a TCP proxy in front of a real server that injects network faults on request and counts what it forwards. It does not
//! parse the protocol: a request counts as a decision if it contains given bytes.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::poll::pause_task;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkFault {
    None,
    DelayReplies(Duration),
    DelayRequests(Duration),
    /// Closes a connection in the middle of the next reply after a decision was requested, after this many bytes. Other
    /// requests, such as a `PING`, are answered.
    CutReplies(usize),
    /// Discards all bytes on existing and new connections. They are closed when the fault ends, since discarded bytes do not
    /// come back.
    Blackhole,
    /// Forwards replies byte by byte, with a pause before each.
    Trickle(Duration),
    /// Closes all connections and stops listening.
    Refuse,
}

/// A proxy that runs until it is dropped.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<ProxyState>,
    thread: Option<Runtime>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForwardedCounts {
    pub connections: u64,
    /// Decisions that clients sent, whether they arrived or not.
    pub decisions: u64,
    /// Bytes that reached the server.
    pub up: u64,
    /// Bytes that reached a client.
    pub down: u64,
}

#[derive(Debug)]
struct ProxyState {
    server: u16,
    /// Bytes that only a request for a decision contains.
    mark: Vec<u8>,
    fault: watch::Sender<NetworkFault>,
    listening: watch::Sender<bool>,
    counts: Mutex<ForwardedCounts>,
}

/// Bytes in transit and their delivery time.
type Line = (Instant, Vec<u8>);

impl Proxy {
    /// Starts a proxy in front of the server on local port `server`, on a thread of its own, so that it is as quick when the runtime of the
    /// test is busy. Requests that contain `mark` count as decisions.
    pub async fn start(server: u16, mark: &[u8]) -> Self {
        let thread = own_thread("proxy");
        let listener = thread.spawn(TcpListener::bind(("127.0.0.1", 0))).await.unwrap().unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(ProxyState {
            server,
            mark: mark.to_vec(),
            fault: watch::Sender::new(NetworkFault::None),
            listening: watch::Sender::new(true),
            counts: Mutex::default(),
        });
        thread.spawn(accept(listener, Arc::clone(&shared)));
        Self { port, shared, thread: Some(thread) }
    }

    /// Injects this fault from now on. Returns once new connections get it.
    pub async fn inject(&self, fault: NetworkFault) {
        self.shared.fault.send_replace(fault);
        let mut listening = self.shared.listening.subscribe();
        let wanted = fault != NetworkFault::Refuse;
        listening.wait_for(|listening| *listening == wanted).await.expect("the proxy runs");
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn forwarded_counts(&self) -> ForwardedCounts {
        *self.shared.counts.lock().unwrap()
    }
}

impl ProxyState {
    fn count(&self, add: impl FnOnce(&mut ForwardedCounts)) {
        add(&mut self.counts.lock().unwrap());
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.shutdown_background();
        }
    }
}

/// A runtime with one thread.
pub(crate) fn own_thread(name: &str) -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).thread_name(name).enable_all().build().unwrap()
}

async fn accept(listener: TcpListener, shared: Arc<ProxyState>) {
    let address = listener.local_addr().unwrap();
    let (mut listener, mut fault) = (Some(listener), shared.fault.subscribe());
    // Dropping the proxy drops these tasks, and every connection with them.
    let mut connections = JoinSet::new();
    loop {
        let refuses = *fault.borrow_and_update() == NetworkFault::Refuse;
        if refuses {
            listener = None;
            connections.shutdown().await;
        } else if listener.is_none() {
            listener = Some(rebind(address).await);
        }
        shared.listening.send_replace(!refuses);
        let Some(listener) = &listener else {
            let _ = fault.changed().await;
            continue;
        };
        tokio::select! {
            accepted = listener.accept() => if let Ok((client, _)) = accepted {
                shared.count(|counts| counts.connections += 1);
                connections.spawn(forward(client, Arc::clone(&shared)));
            },
            _ = fault.changed() => {}
        }
        while connections.try_join_next().is_some() {}
    }
}

/// Binds the port again. Another process may have taken it in the meantime, most likely for a short time.
async fn rebind(address: SocketAddr) -> TcpListener {
    for _ in 0..10_000 {
        if let Ok(listener) = TcpListener::bind(address).await {
            return listener;
        }
        pause_task().await;
    }
    panic!("another process listens on {address} now");
}

/// Forwards both directions until one side closes or a fault ends the connection.
async fn forward(client: TcpStream, shared: Arc<ProxyState>) -> io::Result<()> {
    let mut fault = shared.fault.subscribe();
    let _ = client.set_nodelay(true);
    let server = TcpStream::connect(("127.0.0.1", shared.server)).await?;
    let _ = server.set_nodelay(true);
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let decision_sent = AtomicBool::new(false);
    let ((requests, queued_requests), (replies, queued_replies)) = (unbounded_channel(), unbounded_channel());
    let up = async {
        tokio::try_join!(
            take_requests(from_client, requests, &shared, &decision_sent),
            deliver(queued_requests, to_server, &shared, |counts| &mut counts.up)
        )
    };
    let down = async {
        tokio::try_join!(
            take_replies(from_server, replies, &shared, &decision_sent),
            deliver(queued_replies, to_client, &shared, |counts| &mut counts.down)
        )
    };
    let blackhole = async {
        let _ = fault.wait_for(|fault| *fault == NetworkFault::Blackhole).await;
        let _ = fault.wait_for(|fault| *fault != NetworkFault::Blackhole).await;
    };
    tokio::select! {
        ended = up => ended.map(drop),
        ended = down => ended.map(drop),
        () = blackhole => Ok(()),
    }
}

async fn take_requests(
    mut from_client: OwnedReadHalf,
    line: UnboundedSender<Line>,
    shared: &ProxyState,
    decision_sent: &AtomicBool,
) -> io::Result<()> {
    let (mut buffer, mut seen) = (vec![0; 16_384], MarkCounter::default());
    loop {
        let length = from_client.read(&mut buffer).await?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let decisions = seen.count(&buffer[..length], &shared.mark);
        shared.count(|counts| counts.decisions += decisions);
        let delay = match *shared.fault.borrow() {
            NetworkFault::Blackhole => continue,
            NetworkFault::DelayRequests(delay) => delay,
            NetworkFault::CutReplies(_) if decisions > 0 => {
                decision_sent.store(true, Ordering::SeqCst);
                Duration::ZERO
            }
            _ => Duration::ZERO,
        };
        let _ = line.send((Instant::now() + delay, buffer[..length].to_vec()));
    }
}

/// Ends when the server closes; bytes in transit are still delivered.
async fn take_replies(
    mut from_server: OwnedReadHalf,
    line: UnboundedSender<Line>,
    shared: &ProxyState,
    decision_sent: &AtomicBool,
) -> io::Result<()> {
    let mut buffer = vec![0; 16_384];
    loop {
        let length = from_server.read(&mut buffer).await?;
        let (fault, now) = (*shared.fault.borrow(), Instant::now());
        match fault {
            _ if length == 0 => return Ok(()),
            NetworkFault::Blackhole => {}
            NetworkFault::CutReplies(after) if decision_sent.load(Ordering::SeqCst) => {
                let _ = line.send((now, buffer[..after.min(length)].to_vec()));
                return Ok(());
            }
            NetworkFault::Trickle(pause) => {
                let bytes = buffer[..length].iter().zip(1..);
                bytes.for_each(|(byte, place)| drop(line.send((now + pause * place, vec![*byte]))));
            }
            NetworkFault::DelayReplies(delay) => drop(line.send((now + delay, buffer[..length].to_vec()))),
            _ => drop(line.send((now, buffer[..length].to_vec()))),
        }
    }
}

/// Delivers queued bytes in order, each at its time, or at once when the fault ends.
async fn deliver(
    mut line: UnboundedReceiver<Line>,
    mut to: OwnedWriteHalf,
    shared: &ProxyState,
    count: fn(&mut ForwardedCounts) -> &mut u64,
) -> io::Result<()> {
    let mut fault = shared.fault.subscribe();
    while let Some((due, bytes)) = line.recv().await {
        if due > Instant::now() {
            tokio::select! {
                () = sleep_until(due) => {}
                _ = fault.wait_for(|fault| *fault == NetworkFault::None) => {}
            }
        }
        to.write_all(&bytes).await?;
        shared.count(|counts| *count(counts) += bytes.len() as u64);
    }
    Ok(())
}

/// The tail of what was read so far: a mark may span two reads.
#[derive(Default)]
struct MarkCounter(Vec<u8>);

impl MarkCounter {
    fn count(&mut self, bytes: &[u8], mark: &[u8]) -> u64 {
        self.0.extend_from_slice(bytes);
        let found = self.0.windows(mark.len()).filter(|window| *window == mark).count();
        let keep = self.0.len().min(mark.len() - 1);
        self.0.drain(..self.0.len() - keep);
        found as u64
    }
}
