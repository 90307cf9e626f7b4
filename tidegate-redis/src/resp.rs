//! The Redis protocol: finds complete replies in received bytes and parses them. Whatever the bytes are, it neither panics nor
//! reads a reply twice; a reply that arrives byte by byte costs no more than one that arrives at once.

use redis::{ErrorKind, PushKind, RedisError, RedisResult, Value};

/// A longer reply is an error: no command of this crate has one.
const MAX_REPLY_BYTES: usize = 64 << 20;

/// A reply with deeper nesting is an error.
const MAX_DEPTH: usize = 16;

/// Arrays are allocated for at most this many elements in advance, whatever length a reply announces.
const MAX_RESERVED_ELEMENTS: usize = 1024;

/// Received bytes that are not parsed yet.
#[derive(Default)]
pub(crate) struct ReplyBuffer {
    bytes: Vec<u8>,
    /// The end of the last parsed reply.
    start: usize,
    scanner: FrameScanner,
}

/// Finds the end of the first reply. It keeps its position, so that no byte is looked at twice.
#[derive(Default)]
struct FrameScanner {
    /// Bytes of the reply that have been scanned. Beyond the end of the buffer while a string is incomplete.
    scanned: usize,
    /// Where to continue searching for the end of the current line.
    searched: usize,
    /// Values that the reply still needs beside the one at the current line; nested values count like the reply itself.
    missing: usize,
    /// Whether the last line of the reply was scanned; only bytes of its string may be missing.
    is_last: bool,
}

/// A parser over one complete reply.
struct ReplyParser<'b> {
    bytes: &'b [u8],
    position: usize,
}

impl ReplyBuffer {
    /// Appends received bytes.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        if self.start == self.bytes.len() {
            self.bytes.clear();
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next complete reply. `None` if there is none yet; an error if the bytes are not the protocol.
    pub(crate) fn next_reply(&mut self) -> Option<RedisResult<Value>> {
        loop {
            let pending = self.bytes.get(self.start..).filter(|pending| !pending.is_empty())?;
            let end = match self.scanner.scan(pending) {
                Ok(end) => end?,
                Err(error) => return Some(Err(error)),
            };
            let reply = ReplyParser { bytes: pending.get(..end)?, position: 0 }.value(0);
            self.start += end;
            self.scanner = FrameScanner::default();
            self.compact();
            match reply {
                // Messages that the server sends on its own are not replies.
                Ok(Value::Push { .. }) => {}
                reply => return Some(reply),
            }
        }
    }

    /// Drops parsed bytes once they are the larger part.
    fn compact(&mut self) {
        if self.start > self.bytes.len() / 2 && self.start > 1 << 16 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
    }
}

impl FrameScanner {
    /// The length of the first reply in `bytes`, if it is complete.
    fn scan(&mut self, bytes: &[u8]) -> RedisResult<Option<usize>> {
        while !self.is_last {
            if self.scanned > bytes.len() {
                return Ok(None);
            }
            let Some(line_end) = find_line_end(bytes, self.searched.max(self.scanned)) else {
                // The last byte may be the first half of a line end.
                self.searched = bytes.len().saturating_sub(1);
                let too_long = bytes.len() > MAX_REPLY_BYTES;
                return if too_long { Err(malformed("a line of a reply is too long")) } else { Ok(None) };
            };
            let (string_bytes, values) = announced(&bytes[self.scanned..line_end])?;
            self.scanned = line_end + 2 + string_bytes;
            self.missing += values;
            if self.scanned > MAX_REPLY_BYTES || self.missing > MAX_REPLY_BYTES {
                return Err(malformed("a reply is too long"));
            }
            self.is_last = self.missing == 0;
            self.missing = self.missing.saturating_sub(1);
        }
        Ok(Some(self.scanned).filter(|end| *end <= bytes.len()))
    }
}

/// What follows the line of a reply: the bytes of its string with the line end, and the values nested in it.
fn announced(line: &[u8]) -> RedisResult<(usize, usize)> {
    let (kind, text) = line.split_first().ok_or_else(|| malformed("a reply has an empty line"))?;
    let values = |factor: usize| {
        let length = length(text)?.unwrap_or(0);
        length
            .checked_mul(factor)
            .filter(|values| *values <= MAX_REPLY_BYTES)
            .ok_or_else(|| malformed("a reply is too long"))
    };
    match kind {
        b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => Ok((0, 0)),
        b'$' | b'=' | b'!' => match length(text)? {
            Some(length) if length <= MAX_REPLY_BYTES => Ok((length + 2, 0)),
            Some(_) => Err(malformed("a string of a reply is too long")),
            None => Ok((0, 0)),
        },
        b'*' | b'~' | b'>' => Ok((0, values(1)?)),
        b'%' => Ok((0, values(2)?)),
        // Attributes are followed by the value that they describe.
        b'|' => Ok((0, values(2)? + 1)),
        _ => Err(malformed("a reply begins with an unknown byte")),
    }
}

/// A length; `None` for the -1 of a null.
fn length(text: &[u8]) -> RedisResult<Option<usize>> {
    if text == b"-1" {
        return Ok(None);
    }
    let digits = std::str::from_utf8(text).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let length = digits.and_then(|digits| digits.parse().ok());
    length.map(Some).ok_or_else(|| malformed("a length in a reply is not a number"))
}

/// The position of the first line end at or after `from`.
fn find_line_end(bytes: &[u8], from: usize) -> Option<usize> {
    let mut position = from;
    loop {
        position += bytes.get(position..)?.iter().position(|byte| *byte == b'\r')?;
        match bytes.get(position + 1) {
            Some(b'\n') => return Some(position),
            Some(_) => position += 1,
            None => return None,
        }
    }
}

impl ReplyParser<'_> {
    fn value(&mut self, depth: usize) -> RedisResult<Value> {
        if depth > MAX_DEPTH {
            return Err(malformed("a reply is nested too deeply"));
        }
        let start = self.position;
        let line_end = find_line_end(self.bytes, start).ok_or_else(|| malformed("a reply is incomplete"))?;
        self.position = line_end + 2;
        let (kind, text) = self.bytes[start..line_end].split_first().ok_or_else(|| malformed("a reply is empty"))?;
        match kind {
            b'$' => match length(text)? {
                Some(length) => self.string(length).map(|bytes| Value::BulkString(bytes.to_vec())),
                None => Ok(Value::Nil),
            },
            b':' => std::str::from_utf8(text)
                .ok()
                .and_then(|text| text.parse().ok())
                .map(Value::Int)
                .ok_or_else(|| malformed("an integer in a reply is not a number")),
            b'+' if text == b"OK" => Ok(Value::Okay),
            b'*' => match length(text)? {
                Some(length) => self.values(length, depth).map(Value::Array),
                None => Ok(Value::Nil),
            },
            b'~' => self.values(length(text)?.unwrap_or(0), depth).map(Value::Set),
            b'%' => {
                let mut pairs = Vec::new();
                for _ in 0..length(text)?.unwrap_or(0) {
                    pairs.push((self.value(depth + 1)?, self.value(depth + 1)?));
                }
                Ok(Value::Map(pairs))
            }
            b'|' => {
                for _ in 0..length(text)?.unwrap_or(0) {
                    self.value(depth + 1)?;
                    self.value(depth + 1)?;
                }
                self.value(depth + 1)
            }
            b'>' => {
                let data = self.values(length(text)?.unwrap_or(0), depth)?;
                Ok(Value::Push { kind: PushKind::Other(String::new()), data })
            }
            b'=' | b'!' => {
                self.string(length(text)?.unwrap_or(0))?;
                redis::parse_redis_value(&self.bytes[start..self.position])
            }
            // Errors have no public constructor; the others are rare.
            _ => redis::parse_redis_value(&self.bytes[start..self.position]),
        }
    }

    fn values(&mut self, count: usize, depth: usize) -> RedisResult<Vec<Value>> {
        let mut values = Vec::with_capacity(count.min(MAX_RESERVED_ELEMENTS));
        for _ in 0..count {
            values.push(self.value(depth + 1)?);
        }
        Ok(values)
    }

    /// The next `length` bytes, which a line end follows.
    fn string(&mut self, length: usize) -> RedisResult<&[u8]> {
        let (start, end) = (self.position, self.position.saturating_add(length));
        if self.bytes.get(end..end.saturating_add(2)) != Some(b"\r\n") {
            return Err(malformed("a string of a reply has another length than it says"));
        }
        self.position = end + 2;
        Ok(&self.bytes[start..end])
    }
}

/// The error for bytes that are not the protocol.
fn malformed(message: &'static str) -> RedisError {
    RedisError::from((ErrorKind::Parse, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_all(bytes: &[u8], chunk: usize) -> Result<Vec<Value>, String> {
        let (mut buffer, mut replies) = (ReplyBuffer::default(), Vec::new());
        for chunk in bytes.chunks(chunk) {
            buffer.extend(chunk);
            while let Some(reply) = buffer.next_reply() {
                replies.push(reply.map_err(|error| error.to_string())?);
            }
        }
        Ok(replies)
    }

    #[test]
    fn replies_are_the_same_however_they_are_cut() {
        let bytes = b"+PONG\r\n+OK\r\n:-7\r\n$5\r\na\r\nbc\r\n$0\r\n\r\n$-1\r\n*-1\r\n*0\r\n*2\r\n$1\r\nx\r\n*1\r\n:1\r\n\
            -NOSCRIPT no such\r\n>2\r\n+invalidate\r\n_\r\n%1\r\n+a\r\n#t\r\n|1\r\n+ttl\r\n:3\r\n$1\r\ny\r\n,1.5\r\n=7\r\ntxt:abc\r\n";
        let whole = parse_all(bytes, bytes.len()).unwrap();
        assert_eq!(whole.len(), 14, "{whole:?}");
        assert_eq!(whole[0], Value::SimpleString("PONG".into()));
        assert_eq!(whole[3], Value::BulkString(b"a\r\nbc".to_vec()));
        assert_eq!(whole[8], Value::Array(vec![Value::BulkString(b"x".to_vec()), Value::Array(vec![Value::Int(1)])]));
        let error = whole[9].clone().extract_error().unwrap_err();
        assert_eq!((error.code(), error.detail()), (Some("NOSCRIPT"), Some("no such")));
        assert_eq!(whole[11], Value::BulkString(b"y".to_vec()), "attributes are skipped");
        for chunk in 1..bytes.len() {
            assert_eq!(parse_all(bytes, chunk).unwrap(), whole, "chunks of {chunk}");
        }
    }

    #[test]
    fn bytes_that_are_not_the_protocol_are_an_error() {
        let deep = [&b"*1\r\n".repeat(40)[..], b":1\r\n"].concat();
        for bytes in [
            &b"HTTP/1.1 400 Bad Request\r\n"[..],
            b"$99999999999999999999\r\n",
            b"$999999999\r\n",
            b"*99999999999\r\n",
            b"%9223372036854775807\r\n",
            b"$3\r\nabcd\r\n",
            b"$-2\r\n",
            b":x\r\n",
            b"\r\n",
            &deep,
        ] {
            assert!(parse_all(bytes, 3).is_err(), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn an_incomplete_reply_is_none_yet() {
        for bytes in [&b""[..], b"$5\r\nab", b"*2\r\n:1\r\n", b"+PON", b"$1\r\na\r", b"*1"] {
            assert_eq!(parse_all(bytes, 1).unwrap(), [], "{}", bytes.escape_ascii());
        }
    }
}
