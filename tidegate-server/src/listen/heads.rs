//! `Heads`: finds in the bytes of an HTTP/1.1 connection each head that says in two ways how long its body is. Pure.
//!
//! The HTTP library reads such a request as chunked, which is allowed and safe, and drops the length, so that nobody behind it
//! can tell. Whether whoever stands in front of us read it in the same way is not known: it is refused. What the library itself
//! refuses is not looked at any further here.

/// How much of a line is kept: the name of a field, and a length.
const KEPT: usize = 64;

/// Reads along.
#[derive(Debug, Default)]
pub(super) struct Heads {
    state: State,
    line: Vec<u8>,
    /// Whether the head has a line by now; empty ones in front of it do not count.
    begun: bool,
    is_chunked: bool,
    length: Option<u64>,
    /// How many heads have ended.
    ended: u64,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Head,
    /// So many bytes are left of a body.
    Body(u64),
    ChunkSize,
    /// So many bytes are left of a chunk and the line break after it.
    Chunk(u64),
    Trailers,
    /// It is another protocol, or makes no sense, which the library finds as well.
    Lost,
}

impl Heads {
    /// Reads on. The number of the request that is ambiguous, counted from one, if `bytes` show that.
    pub(super) fn read(&mut self, mut bytes: &[u8]) -> Option<u64> {
        while !bytes.is_empty() {
            match &mut self.state {
                State::Lost => return None,
                State::Body(left) | State::Chunk(left) => {
                    let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    *left -= taken as u64;
                    if *left == 0 {
                        let is_chunk = matches!(self.state, State::Chunk(_));
                        self.state = if is_chunk { State::ChunkSize } else { State::Head };
                    }
                    bytes = &bytes[taken..];
                }
                State::Head | State::ChunkSize | State::Trailers => {
                    let end = bytes.iter().position(|byte| *byte == b'\n');
                    let part = &bytes[..end.unwrap_or(bytes.len())];
                    let room = KEPT.saturating_sub(self.line.len());
                    self.line.extend_from_slice(&part[..part.len().min(room)]);
                    let end = end?;
                    bytes = &bytes[end + 1..];
                    let line = std::mem::take(&mut self.line);
                    if self.line_ended(line.strip_suffix(b"\r").unwrap_or(&line)) {
                        return Some(self.ended);
                    }
                    self.line = line;
                    self.line.clear();
                }
            }
        }
        None
    }

    /// A line ended. Whether it ended an ambiguous head.
    fn line_ended(&mut self, line: &[u8]) -> bool {
        match self.state {
            State::ChunkSize => {
                let size = line.split(|byte| *byte == b';').next().unwrap_or_default();
                let size = std::str::from_utf8(size).ok().and_then(|size| u64::from_str_radix(size.trim(), 16).ok());
                self.state = match size {
                    Some(0) => State::Trailers,
                    Some(size) => State::Chunk(size.saturating_add(2)),
                    None => State::Lost,
                };
            }
            State::Trailers if line.is_empty() => self.state = State::Head,
            State::Head if line == b"PRI * HTTP/2.0" => self.state = State::Lost,
            State::Head if line.is_empty() => return self.begun && self.head_ended(),
            State::Head => self.field(line),
            _ => {}
        }
        false
    }

    fn field(&mut self, line: &[u8]) {
        self.begun = true;
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { return };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.is_chunked = true;
        } else if name.eq_ignore_ascii_case(b"content-length") {
            // Whatever is no number is refused by the library.
            self.length = Some(std::str::from_utf8(value).ok().and_then(|value| value.parse().ok()).unwrap_or(0));
        }
    }

    fn head_ended(&mut self) -> bool {
        self.ended += 1;
        self.begun = false;
        let (is_chunked, length) = (std::mem::take(&mut self.is_chunked), self.length.take());
        self.state = match (is_chunked, length) {
            (true, Some(_)) => State::Lost,
            (true, None) => State::ChunkSize,
            (false, Some(length)) if length > 0 => State::Body(length),
            (false, _) => State::Head,
        };
        is_chunked && length.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\ntransfer-encoding: chunked\r\n\r\n";

    /// What is found, whichever way the bytes are cut.
    fn found(text: &str) -> Option<u64> {
        let whole = Heads::default().read(text.as_bytes());
        for size in [1, 2, 7] {
            let mut heads = Heads::default();
            let parts = text.as_bytes().chunks(size).find_map(|part| heads.read(part));
            assert_eq!(parts, whole, "in parts of {size}");
        }
        whole
    }

    #[test]
    fn a_head_with_both_is_found_wherever_it_stands() {
        let get = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        let post = "POST / HTTP/1.1\r\ncontent-length: 12\r\n\r\na: b\r\n\r\nc: d";
        let chunked = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n6;x=y\r\n\r\n\r\n\r\n\r\nA\r\n0123456789\r\n0\r\nx-sum: 1\r\n\r\n";
        assert_eq!(found(BOTH), Some(1));
        assert_eq!(found(&format!("\r\n{get}\r\n\r\n{BOTH}")), Some(2), "empty lines in front of a head");
        assert_eq!(found(&format!("{get}{post}{chunked}{get}{BOTH}")), Some(5));
        let longest = format!("GET / HTTP/1.1\r\nx-long: {}\r\n\r\n", "x: y".repeat(1000));
        assert_eq!(found(&format!("{longest}{BOTH}")), Some(2));
        assert_eq!(found(&BOTH.replace("\r\n", "\n")), Some(1));
        let swapped = "POST / HTTP/1.1\r\nTRANSFER-ENCODING:gzip\r\ncontent-length:5\r\n\r\n";
        assert_eq!(found(swapped), Some(1));
    }

    #[test]
    fn what_only_looks_like_a_head_is_none() {
        let body = format!("POST / HTTP/1.1\r\ncontent-length: {}\r\n\r\n{BOTH}", BOTH.len());
        assert_eq!(found(&body), None);
        let chunk =
            format!("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{BOTH}\r\n0\r\n\r\n", BOTH.len());
        assert_eq!(found(&chunk), None);
        assert_eq!(found(&format!("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{BOTH}")), None, "another protocol");
        assert_eq!(found("GET / HTTP/1.1\r\nx-content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n"), None);
    }
}
