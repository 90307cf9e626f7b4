//! `SmugglingGuard`: finds requests with both a `Content-Length` and a `Transfer-Encoding`, or with a length such as `010`, in the bytes
//! of an HTTP/1.1 connection. Pure.
//!
//! hyper reads the body of a request with both as chunked, as RFC 9112 allows, and drops the length, so that the service cannot see it. A
//! proxy in front may have used the length instead (request smuggling), or have read `010` as eight, so the request is rejected. The
//! guard skips bodies the way hyper measures them; after a body that it cannot measure for certain, it rejects the next request too.

/// Bytes of a line that are kept: enough for a header name with a length, or for a chunk size.
const MAX_LINE_BYTES: usize = 64;

/// A parser that sees the bytes before hyper does.
#[derive(Debug, Default)]
pub(super) struct SmugglingGuard {
    state: ParserState,
    line: Vec<u8>,
    /// Whether the line is longer than [`MAX_LINE_BYTES`].
    is_truncated: bool,
    /// Whether the head has a line; empty lines before it do not count.
    has_head_line: bool,
    is_chunked: bool,
    content_length: Option<ContentLength>,
    /// Number of complete heads.
    head_count: u64,
}

/// The value of a `Content-Length`.
#[derive(Debug)]
enum ContentLength {
    Bytes(u64),
    /// Such as `010`.
    LeadingZero,
}

#[derive(Debug, Default)]
enum ParserState {
    #[default]
    Head,
    /// Bytes left of a body.
    Body(u64),
    ChunkSize,
    /// Bytes left of a chunk and the line break after it.
    Chunk(u64),
    Trailers,
    /// The rest is ignored: another protocol, or a rejected request that closes the connection.
    Ignore,
}

/// The meaning of a line.
#[derive(Debug, PartialEq, Eq)]
enum LineResult {
    Harmless,
    /// The head that this line ends has two body lengths, or one that servers read differently.
    Ambiguous,
    /// The start of the next head is not certain.
    Unmeasurable,
}

impl SmugglingGuard {
    /// Parses more bytes. Returns the number of the request to reject, counted from one, if these bytes complete one.
    pub(super) fn read(&mut self, mut bytes: &[u8]) -> Option<u64> {
        while !bytes.is_empty() {
            match &mut self.state {
                ParserState::Ignore => return None,
                ParserState::Body(left) | ParserState::Chunk(left) => {
                    let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    *left -= taken as u64;
                    if *left == 0 {
                        let is_chunk = matches!(self.state, ParserState::Chunk(_));
                        self.state = if is_chunk { ParserState::ChunkSize } else { ParserState::Head };
                    }
                    bytes = &bytes[taken..];
                }
                ParserState::Head | ParserState::ChunkSize | ParserState::Trailers => {
                    let end = bytes.iter().position(|byte| *byte == b'\n');
                    self.append_to_line(&bytes[..end.unwrap_or(bytes.len())]);
                    bytes = &bytes[end? + 1..];
                    let (line, is_truncated) = (std::mem::take(&mut self.line), std::mem::take(&mut self.is_truncated));
                    let number = match self.end_line(&line, is_truncated) {
                        LineResult::Harmless => None,
                        LineResult::Ambiguous => Some(self.head_count),
                        LineResult::Unmeasurable => Some(self.head_count + 1),
                    };
                    if number.is_some() {
                        self.state = ParserState::Ignore;
                        return number;
                    }
                    self.line = line;
                    self.line.clear();
                }
            }
        }
        None
    }

    fn append_to_line(&mut self, part: &[u8]) {
        let room = MAX_LINE_BYTES.saturating_sub(self.line.len());
        self.line.extend_from_slice(&part[..part.len().min(room)]);
        // A carriage return at the end counts towards the limit.
        self.is_truncated |= part.len() > room;
    }

    fn end_line(&mut self, line: &[u8], is_truncated: bool) -> LineResult {
        let (line, has_return) = line.strip_suffix(b"\r").map_or((line, false), |line| (line, true));
        match self.state {
            // hyper accepts a bare line feed in heads, but not in these lines.
            ParserState::ChunkSize | ParserState::Trailers if !has_return && !is_truncated => {
                return LineResult::Unmeasurable;
            }
            ParserState::ChunkSize => return self.parse_chunk_size(line, is_truncated),
            ParserState::Trailers if line.is_empty() => self.state = ParserState::Head,
            ParserState::Head if line == b"PRI * HTTP/2.0" => self.state = ParserState::Ignore,
            ParserState::Head if line.is_empty() && self.has_head_line => return self.end_head(),
            ParserState::Head if !line.is_empty() => return self.parse_field(line, is_truncated),
            _ => {}
        }
        LineResult::Harmless
    }

    fn parse_chunk_size(&mut self, line: &[u8], is_truncated: bool) -> LineResult {
        let mut parts = line.split(|byte| *byte == b';');
        let size = parts.next().unwrap_or_default();
        // An extension after the size may have any length.
        if is_truncated && parts.next().is_none() {
            return LineResult::Unmeasurable;
        }
        let size = str::from_utf8(size).ok().and_then(|size| u64::from_str_radix(size.trim(), 16).ok());
        self.state = match size {
            None => return LineResult::Unmeasurable,
            Some(0) => ParserState::Trailers,
            Some(size) => ParserState::Chunk(size.saturating_add(2)),
        };
        LineResult::Harmless
    }

    fn parse_field(&mut self, line: &[u8], is_truncated: bool) -> LineResult {
        self.has_head_line = true;
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { return LineResult::Harmless };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.is_chunked = true;
        } else if name.eq_ignore_ascii_case(b"content-length") {
            let content_length = str::from_utf8(value).ok().and_then(|value| value.parse().ok());
            let Some(bytes) = content_length.filter(|_| !is_truncated) else {
                return LineResult::Unmeasurable;
            };
            let has_leading_zero = value.len() > 1 && value.starts_with(b"0");
            self.content_length =
                Some(if has_leading_zero { ContentLength::LeadingZero } else { ContentLength::Bytes(bytes) });
        }
        LineResult::Harmless
    }

    fn end_head(&mut self) -> LineResult {
        self.head_count += 1;
        self.has_head_line = false;
        let (is_chunked, content_length) = (std::mem::take(&mut self.is_chunked), self.content_length.take());
        self.state = match (is_chunked, content_length) {
            (true, Some(_)) | (false, Some(ContentLength::LeadingZero)) => return LineResult::Ambiguous,
            (true, None) => ParserState::ChunkSize,
            (false, Some(ContentLength::Bytes(bytes))) if bytes > 0 => ParserState::Body(bytes),
            (false, _) => ParserState::Head,
        };
        LineResult::Harmless
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\ntransfer-encoding: chunked\r\n\r\n";

    /// The result, which must not depend on how the bytes are split.
    fn find_ambiguous(text: &str) -> Option<u64> {
        let whole = SmugglingGuard::default().read(text.as_bytes());
        for size in [1, 2, 7] {
            let mut guard = SmugglingGuard::default();
            let parts = text.as_bytes().chunks(size).find_map(|part| guard.read(part));
            assert_eq!(parts, whole, "in pieces of {size} bytes");
        }
        whole
    }

    #[test]
    fn a_request_with_two_readings_of_its_length_is_found_at_any_position() {
        let get = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        let post = "POST / HTTP/1.1\r\ncontent-length: 12\r\n\r\na: b\r\n\r\nc: d";
        let chunked = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n6;x=y\r\n\r\n\r\n\r\n\r\nA\r\n0123456789\r\n0\r\nx-sum: 1\r\n\r\n";
        assert_eq!(find_ambiguous(BOTH), Some(1));
        assert_eq!(find_ambiguous(&format!("\r\n{get}\r\n\r\n{BOTH}")), Some(2), "empty lines in front of a head");
        assert_eq!(find_ambiguous(&format!("{get}{post}{chunked}{get}{BOTH}")), Some(5));
        let long_line = format!("GET / HTTP/1.1\r\nx-long: {}\r\n\r\n", "x: y".repeat(1000));
        assert_eq!(find_ambiguous(&format!("{long_line}{BOTH}")), Some(2));
        assert_eq!(find_ambiguous(&BOTH.replace("\r\n", "\n")), Some(1));
        for length in ["05", "00", "010"] {
            assert_eq!(find_ambiguous(&BOTH.replace(": 5", &format!(": {length}"))), Some(1));
            let alone = format!("{get}POST / HTTP/1.1\r\ncontent-length: {length}\r\n\r\nhello");
            assert_eq!(find_ambiguous(&alone), Some(2), "{length}");
        }
        let reversed = "POST / HTTP/1.1\r\nTRANSFER-ENCODING:gzip\r\ncontent-length:5\r\n\r\n";
        assert_eq!(find_ambiguous(reversed), Some(1));
    }

    /// A body that hyper measures differently could hide a head from the guard.
    #[test]
    fn the_request_after_a_body_of_uncertain_length_is_rejected() {
        let chunked = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n";
        for rest in [
            "0\r\nx: y\n\nX /\nContent-Length: 99999\n\nz: z\r\n\r\n",
            "0\r\n\nX /\nContent-Length: 99999\n\nz: z\r\n\r\n",
            "5\nhello\r\n0\r\n\r\n",
            "x\r\n",
            &format!("{}5\r\nhello\r\n0\r\n\r\n", "0".repeat(70)),
        ] {
            assert_eq!(find_ambiguous(&format!("{chunked}{rest}{BOTH}")), Some(2), "{rest:?}");
        }
        for content_length in [format!("{}5", " ".repeat(60)), "+5x".to_owned(), "5, 5".to_owned()] {
            let text = format!("POST / HTTP/1.1\r\nContent-Length:{content_length}\r\n\r\nhello{BOTH}");
            assert_eq!(find_ambiguous(&text), Some(1), "{content_length}");
        }
        let long = format!("5;{}\r\nhello\r\n0\r\nx-sum: {}\r\n\r\n", "x=y;".repeat(100), "1".repeat(100));
        assert_eq!(find_ambiguous(&format!("{chunked}{long}")), None, "long but valid");
        assert_eq!(find_ambiguous(&format!("{chunked}{long}{BOTH}")), Some(2));
    }

    #[test]
    fn text_in_a_body_that_looks_like_a_head_is_ignored() {
        let body = format!("POST / HTTP/1.1\r\ncontent-length: {}\r\n\r\n{BOTH}", BOTH.len());
        assert_eq!(find_ambiguous(&body), None);
        let in_chunk =
            format!("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{BOTH}\r\n0\r\n\r\n", BOTH.len());
        assert_eq!(find_ambiguous(&in_chunk), None);
        assert_eq!(find_ambiguous(&format!("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{BOTH}")), None, "another protocol");
        assert_eq!(find_ambiguous("GET / HTTP/1.1\r\nx-content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n"), None);
    }
}
