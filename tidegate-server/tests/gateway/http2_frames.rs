//! A hostile HTTP/2 client: it writes frames by hand, chooses its own windows, and reads only what a test wants it to.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// `GET / HTTP/2` with the authority `a`: three fields of the static table, and a literal one.
const GET_HEADERS: [u8; 6] = [0x82, 0x86, 0x84, 0x41, 1, b'a'];

const SETTINGS: u8 = 4;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const WINDOW_UPDATE: u8 = 8;
const DATA: u8 = 0;
/// The headers are complete, and the request has no body.
const END_HEADERS_AND_STREAM: u8 = 5;

/// A connection of the hostile client.
pub(crate) struct Http2Connection(TcpStream);

/// A frame that the server sent.
pub(crate) struct ReceivedFrame {
    kind: u8,
    pub(crate) payload: Vec<u8>,
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

impl Http2Connection {
    /// Opens a connection on which each stream may get `window` bytes, and all of them together as many as HTTP/2 allows.
    pub(crate) async fn open(address: SocketAddr, window: u32) -> Self {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let initial_window = [&[0, 4][..], &window.to_be_bytes()].concat();
        let connection_window = (i32::MAX as u32 - 65_535).to_be_bytes();
        let start = [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            frame(SETTINGS, 0, 0, &initial_window),
            frame(WINDOW_UPDATE, 0, 0, &connection_window),
        ];
        stream.write_all(&start.concat()).await.unwrap();
        Self(stream)
    }

    /// Sends `count` requests at once, on the streams from `first` on (an odd number).
    pub(crate) async fn get(&mut self, first: u32, count: u32) {
        let request = |number| frame(HEADERS, END_HEADERS_AND_STREAM, first + 2 * number, &GET_HEADERS);
        let requests: Vec<Vec<u8>> = (0..count).map(request).collect();
        self.0.write_all(&requests.concat()).await.unwrap();
    }

    /// Resets a stream: the response is not wanted any more.
    pub(crate) async fn reset(&mut self, stream: u32) {
        const CANCEL: u32 = 8;
        self.0.write_all(&frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes())).await.unwrap();
    }

    /// Reads the next frame; `None` if the server has closed the connection.
    pub(crate) async fn read_frame(&mut self) -> Option<ReceivedFrame> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; length];
        self.0.read_exact(&mut payload).await.ok()?;
        Some(ReceivedFrame { kind: head[3], payload })
    }

    /// Reads frames until one has data of a response.
    pub(crate) async fn read_data(&mut self) -> ReceivedFrame {
        loop {
            let frame = self.read_frame().await.expect("the server closed the connection");
            if frame.kind == DATA && !frame.payload.is_empty() {
                return frame;
            }
        }
    }
}
