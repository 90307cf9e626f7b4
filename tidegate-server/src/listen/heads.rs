//! `Heads`: finds in the bytes of an HTTP/1.1 connection each head that says in two ways how long its body is. Pure.
//!
//! The HTTP library reads such a request as chunked, which is allowed and safe, and drops the length, so that nobody behind it
//! can tell. Whether whoever stands in front of us read it in the same way is not known: it is refused. To find the heads, the
//! bodies between them must be measured as the library does; where that cannot be relied upon, the request that follows is
//! refused as well.

/// How much of a line is kept: the name of a field and a length, or the size of a chunk.
const KEPT: usize = 64;

/// Reads along.
#[derive(Debug, Default)]
pub(super) struct Heads {
    state: State,
    line: Vec<u8>,
    /// Whether there was more of the line than is kept.
    cut: bool,
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
    /// What comes next is not looked at: it is another protocol, or a request was found that ends the connection.
    Over,
}

/// What a line has shown.
#[derive(Debug, PartialEq, Eq)]
enum Shown {
    Nothing,
    /// The head that ended is ambiguous.
    Ambiguous,
    /// Where the next head begins cannot be told for certain.
    Doubt,
}

impl Heads {
    /// Reads on. The number of the request that must be refused, counted from one, if `bytes` show that there is one.
    pub(super) fn read(&mut self, mut bytes: &[u8]) -> Option<u64> {
        while !bytes.is_empty() {
            match &mut self.state {
                State::Over => return None,
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
                    self.keep(&bytes[..end.unwrap_or(bytes.len())]);
                    bytes = &bytes[end? + 1..];
                    let (line, cut) = (std::mem::take(&mut self.line), std::mem::take(&mut self.cut));
                    let number = match self.line_ended(&line, cut) {
                        Shown::Nothing => None,
                        Shown::Ambiguous => Some(self.ended),
                        Shown::Doubt => Some(self.ended + 1),
                    };
                    if number.is_some() {
                        self.state = State::Over;
                        return number;
                    }
                    self.line = line;
                    self.line.clear();
                }
            }
        }
        None
    }

    fn keep(&mut self, part: &[u8]) {
        let room = KEPT.saturating_sub(self.line.len());
        self.line.extend_from_slice(&part[..part.len().min(room)]);
        // The carriage return at the end of a line is part of it here.
        self.cut |= part.len() > room;
    }

    fn line_ended(&mut self, line: &[u8], cut: bool) -> Shown {
        let (line, has_return) = line.strip_suffix(b"\r").map_or((line, false), |line| (line, true));
        match self.state {
            // The library ends these lines at both signs only, and heads at a line feed, too.
            State::ChunkSize | State::Trailers if !has_return && !cut => return Shown::Doubt,
            State::ChunkSize => return self.chunk(line, cut),
            State::Trailers if line.is_empty() => self.state = State::Head,
            State::Head if line == b"PRI * HTTP/2.0" => self.state = State::Over,
            State::Head if line.is_empty() && self.begun => return self.head_ended(),
            State::Head if !line.is_empty() => return self.field(line, cut),
            _ => {}
        }
        Shown::Nothing
    }

    fn chunk(&mut self, line: &[u8], cut: bool) -> Shown {
        let mut parts = line.split(|byte| *byte == b';');
        let size = parts.next().unwrap_or_default();
        // What follows the size may be as long as it wants.
        if cut && parts.next().is_none() {
            return Shown::Doubt;
        }
        let size = str::from_utf8(size).ok().and_then(|size| u64::from_str_radix(size.trim(), 16).ok());
        self.state = match size {
            None => return Shown::Doubt,
            Some(0) => State::Trailers,
            Some(size) => State::Chunk(size.saturating_add(2)),
        };
        Shown::Nothing
    }

    fn field(&mut self, line: &[u8], cut: bool) -> Shown {
        self.begun = true;
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { return Shown::Nothing };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.is_chunked = true;
        } else if name.eq_ignore_ascii_case(b"content-length") {
            let length = str::from_utf8(value).ok().and_then(|value| value.parse().ok());
            let Some(length) = length.filter(|_| !cut) else { return Shown::Doubt };
            self.length = Some(length);
        }
        Shown::Nothing
    }

    fn head_ended(&mut self) -> Shown {
        self.ended += 1;
        self.begun = false;
        let (is_chunked, length) = (std::mem::take(&mut self.is_chunked), self.length.take());
        self.state = match (is_chunked, length) {
            (true, Some(_)) => return Shown::Ambiguous,
            (true, None) => State::ChunkSize,
            (false, Some(length)) if length > 0 => State::Body(length),
            (false, _) => State::Head,
        };
        Shown::Nothing
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

    /// What the library reads in another way than it looks would hide a head from us.
    #[test]
    fn what_follows_a_body_that_cannot_be_measured_is_refused() {
        let chunked = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n";
        for rest in [
            "0\r\nx: y\n\nX /\nContent-Length: 99999\n\nz: z\r\n\r\n",
            "0\r\n\nX /\nContent-Length: 99999\n\nz: z\r\n\r\n",
            "5\nhello\r\n0\r\n\r\n",
            "x\r\n",
            &format!("{}5\r\nhello\r\n0\r\n\r\n", "0".repeat(70)),
        ] {
            assert_eq!(found(&format!("{chunked}{rest}{BOTH}")), Some(2), "{rest:?}");
        }
        for length in [format!("{}5", " ".repeat(60)), "+5x".to_owned(), "5, 5".to_owned()] {
            let text = format!("POST / HTTP/1.1\r\nContent-Length:{length}\r\n\r\nhello{BOTH}");
            assert_eq!(found(&text), Some(1), "{length}");
        }
        let long = format!("5;{}\r\nhello\r\n0\r\nx-sum: {}\r\n\r\n", "x=y;".repeat(100), "1".repeat(100));
        assert_eq!(found(&format!("{chunked}{long}")), None, "what is long and harmless");
        assert_eq!(found(&format!("{chunked}{long}{BOTH}")), Some(2));
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
