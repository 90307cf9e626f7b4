//! HTTP/2 streams that are reset before they are answered, as raw frames: a client library would not send a request and its reset in
//! one write.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::target::KEY_HEADER;

/// Streams of one round. A server may end a connection with many streams that are reset at once.
pub(super) const STREAMS: u32 = 16;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const END_STREAM_AND_HEADERS: u8 = 5;
const CANCEL: u32 = 8;

/// Opens a connection, sends requests with this API key on several streams, and resets them all after `delay`.
pub(super) async fn send_and_reset(address: SocketAddr, key: &str, delay: Duration) -> io::Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let mut requests = PREFACE.to_vec();
    append_frame(&mut requests, SETTINGS, 0, 0, &[]);
    let fields = encode_fields(key);
    let ids = (0..STREAMS).map(|number| 2 * number + 1);
    ids.clone().for_each(|id| append_frame(&mut requests, HEADERS, END_STREAM_AND_HEADERS, id, &fields));
    let mut resets = Vec::new();
    ids.for_each(|id| append_frame(&mut resets, RST_STREAM, 0, id, &CANCEL.to_be_bytes()));
    if delay.is_zero() {
        requests.append(&mut resets);
    }
    stream.write_all(&requests).await?;
    let _ = timeout(delay, read_to_end(&mut stream)).await;
    stream.write_all(&resets).await
}

async fn read_to_end(stream: &mut TcpStream) -> io::Result<()> {
    let mut buffer = [0; 4096];
    while stream.read(&mut buffer).await? > 0 {}
    Ok(())
}

fn append_frame(bytes: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    bytes.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
}

/// The header fields of `GET / HTTP/2`, in HPACK without Huffman coding.
fn encode_fields(key: &str) -> Vec<u8> {
    // From the static table: `:method: GET`, `:scheme: http`, `:path: /`. Then the name `:authority` with a value.
    let mut fields = vec![0x82, 0x86, 0x84, 0x01];
    append_text(&mut fields, "a");
    // A name that is not in the table, with its value.
    fields.push(0x00);
    append_text(&mut fields, KEY_HEADER);
    append_text(&mut fields, key);
    fields
}

/// Appends a text of less than 127 bytes.
fn append_text(fields: &mut Vec<u8>, text: &str) {
    fields.push(u8::try_from(text.len()).unwrap());
    fields.extend_from_slice(text.as_bytes());
}
