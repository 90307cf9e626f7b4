//! A hostile HTTP/2 client: it writes frames by hand, chooses its own windows, and reads only what a test wants it to.

use std::io::{Read, Write};
use std::net::TcpStream;

/// `GET / HTTP/2` with the authority `a`: three fields of the static table, and a literal one.
const GET_HEADERS: [u8; 6] = [0x82, 0x86, 0x84, 0x41, 1, b'a'];

const SETTINGS: u8 = 4;
const HEADERS: u8 = 1;
const WINDOW_UPDATE: u8 = 8;
/// The headers are complete, and the request has no body.
const END_HEADERS_AND_STREAM: u8 = 5;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Opens a connection on which each stream may get `window` bytes, and all of them together as many as HTTP/2 allows. Sends `count`
/// requests at once.
pub(crate) fn get_all(mut stream: TcpStream, window: u32, count: u32) -> TcpStream {
    let initial_window = [&[0, 4][..], &window.to_be_bytes()].concat();
    let connection_window = (i32::MAX as u32 - 65_535).to_be_bytes();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &initial_window));
    bytes.extend(frame(WINDOW_UPDATE, 0, 0, &connection_window));
    for number in 0..count {
        bytes.extend(frame(HEADERS, END_HEADERS_AND_STREAM, 2 * number + 1, &GET_HEADERS));
    }
    stream.write_all(&bytes).unwrap();
    stream
}

/// Reads until the server closes the connection. Returns whether it sent a GOAWAY frame before.
pub(crate) fn is_closed_with_goaway(mut stream: TcpStream) -> bool {
    const GOAWAY: u8 = 7;
    let (mut head, mut has_goaway) = ([0; 9], false);
    while stream.read_exact(&mut head).is_ok() {
        has_goaway |= head[3] == GOAWAY;
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        if stream.read_exact(&mut payload).is_err() {
            break;
        }
    }
    has_goaway
}
