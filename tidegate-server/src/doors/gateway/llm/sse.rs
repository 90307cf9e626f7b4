//! `EventStream`: splits a stream of server-sent events into events as their bytes arrive, and holds back those that the client did not
//! ask for. It keeps at most one incomplete event, and of a long one nothing.

use std::borrow::Cow;

use bytes::Bytes;
use smallvec::SmallVec;

use super::long_event::LongEvent;
use super::token_count::{EventKind, TokenCount};

/// The longest event that is kept. A longer one is passed on as it comes.
pub(super) const MAX_EVENT_BYTES: usize = 64 * 1024;

/// A stream of events on its way to the client.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
pub(super) struct EventStream {
    /// The bytes of the incomplete event, unless it is too long.
    partial: Vec<u8>,
    /// The incomplete event, if it is too long.
    long: Option<LongEvent>,
    /// Whether the current line is empty so far.
    is_line_empty: bool,
    /// Whether the current line is the first one of its event.
    is_first_line: bool,
    /// Whether the current line is a comment in front of an event. It is passed on by itself: servers keep connections alive with it.
    is_comment: bool,
    /// Whether the last byte was a carriage return, of whose line end a line feed would be a part.
    after_return: bool,
    /// Whether events that only state the usage are held back, and with them all incomplete ones.
    withholds_usage: bool,
    /// Whether the last event was passed on.
    is_last_kept: bool,
}

/// What is passed on.
#[derive(Default)]
struct KeptParts {
    /// An event that began in an earlier chunk.
    first: Vec<u8>,
    /// Parts of the chunk, in order.
    ranges: SmallVec<[(usize, usize); 2]>,
}

impl EventStream {
    pub(super) const fn new(withholds_usage: bool) -> Self {
        Self {
            partial: Vec::new(),
            long: None,
            is_line_empty: true,
            is_first_line: true,
            is_comment: false,
            after_return: false,
            withholds_usage,
            is_last_kept: true,
        }
    }

    /// Counts the events that end in `chunk`, and returns what is to be passed on now.
    pub(super) fn push(&mut self, chunk: Bytes, count: &mut TokenCount) -> Bytes {
        let mut kept = KeptParts::default();
        let mut start = 0;
        // The rest of the line end of the last event.
        let is_between_events = self.partial.is_empty() && self.long.is_none();
        if self.after_return && is_between_events && chunk.first() == Some(&b'\n') {
            (self.after_return, start) = (false, 1);
            if self.is_last_kept {
                kept.push(0, 1);
            }
        }
        while let Some(length) = self.find_end(&chunk[start..]) {
            let (bytes, end) = (&chunk[start..start + length], start + length);
            self.is_last_kept = true;
            if self.is_too_long(bytes) {
                kept.push_first(self.read_long(bytes, count));
                kept.push(start, end);
                if let Some(long) = self.long.take() {
                    long.end(count);
                }
            } else if self.partial.is_empty() {
                self.is_last_kept = read_event(bytes, count) == EventKind::Plain;
                if self.is_last_kept {
                    kept.push(start, end);
                }
            } else {
                let mut event = std::mem::take(&mut self.partial);
                extend_exactly(&mut event, bytes);
                self.is_last_kept = read_event(&event, count) == EventKind::Plain;
                if self.is_last_kept {
                    kept.push_first(event);
                }
            }
            start = end;
        }
        let rest = &chunk[start..];
        if self.is_too_long(rest) {
            kept.push_first(self.read_long(rest, count));
            kept.push(start, chunk.len());
        } else {
            extend_exactly(&mut self.partial, rest);
        }
        if self.withholds_usage { kept.into_bytes(&chunk) } else { chunk }
    }

    /// Counts an event that has no end, and returns what was kept of it.
    pub(super) fn finish(&mut self, count: &mut TokenCount) -> Bytes {
        if let Some(long) = self.long.take() {
            long.end(count);
        }
        let partial = std::mem::take(&mut self.partial);
        let kind = read_event(&partial, count);
        if self.withholds_usage && kind == EventKind::Plain { partial.into() } else { Bytes::new() }
    }

    /// Whether the incomplete event is too long to be kept with these further bytes.
    const fn is_too_long(&self, bytes: &[u8]) -> bool {
        self.long.is_some() || self.partial.len() + bytes.len() > MAX_EVENT_BYTES
    }

    /// Reads further bytes of an event that is too long to be kept, and returns what was kept of it before.
    fn read_long(&mut self, bytes: &[u8], count: &mut TokenCount) -> Vec<u8> {
        let partial = std::mem::take(&mut self.partial);
        let long = self.long.get_or_insert_default();
        long.push(&partial, count);
        long.push(bytes, count);
        partial
    }

    /// The length of the rest of the event, or of the comment in front of it, in `bytes`, if its end is there.
    fn find_end(&mut self, bytes: &[u8]) -> Option<usize> {
        for (index, byte) in bytes.iter().enumerate() {
            match byte {
                b'\n' if self.after_return => self.after_return = false,
                b'\n' | b'\r' => {
                    self.after_return = *byte == b'\r';
                    let is_end = std::mem::replace(&mut self.is_line_empty, true) || self.is_comment;
                    (self.is_first_line, self.is_comment) = (is_end, false);
                    if is_end {
                        let is_pair = self.after_return && bytes.get(index + 1) == Some(&b'\n');
                        self.after_return &= !is_pair;
                        return Some(index + 1 + usize::from(is_pair));
                    }
                }
                _ => {
                    if std::mem::take(&mut self.is_line_empty) {
                        self.is_comment = self.is_first_line && *byte == b':';
                    }
                    self.after_return = false;
                }
            }
        }
        None
    }
}

impl KeptParts {
    /// Adds what was kept of an event that began in an earlier chunk.
    fn push_first(&mut self, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            self.first = bytes;
        }
    }

    fn push(&mut self, start: usize, end: usize) {
        match self.ranges.last_mut() {
            Some(last) if last.1 == start => last.1 = end,
            _ => self.ranges.push((start, end)),
        }
    }

    fn into_bytes(self, chunk: &Bytes) -> Bytes {
        let Self { first: mut bytes, ranges } = self;
        if let (true, [(start, end)]) = (bytes.is_empty(), &ranges[..]) {
            return chunk.slice(*start..*end);
        }
        bytes.reserve_exact(ranges.iter().map(|(start, end)| end - start).sum());
        ranges.iter().for_each(|(start, end)| bytes.extend_from_slice(&chunk[*start..*end]));
        bytes.into()
    }
}

/// Appends to what is kept, in no more memory than [`MAX_EVENT_BYTES`].
fn extend_exactly(kept: &mut Vec<u8>, bytes: &[u8]) {
    let length = kept.len() + bytes.len();
    if length > kept.capacity() {
        let capacity = (2 * kept.len()).min(MAX_EVENT_BYTES).max(length);
        kept.reserve_exact(capacity - kept.len());
    }
    kept.extend_from_slice(bytes);
}

fn read_event(event: &[u8], count: &mut TokenCount) -> EventKind {
    let data = data(event);
    if data.is_empty() { EventKind::Plain } else { count.add_event(&data) }
}

/// The data of an event: its `data` lines, joined by line feeds.
fn data(event: &[u8]) -> Cow<'_, [u8]> {
    let event = event.strip_prefix(b"\xef\xbb\xbf").unwrap_or(event);
    let mut lines = event.split(|byte| matches!(byte, b'\n' | b'\r')).filter_map(|line| {
        let value = line.strip_prefix(b"data:")?;
        Some(value.strip_prefix(b" ").unwrap_or(value))
    });
    let first = lines.next().unwrap_or_default();
    let mut rest = lines.peekable();
    if rest.peek().is_none() {
        return Cow::Borrowed(first);
    }
    let mut joined = first.to_vec();
    for line in rest {
        joined.push(b'\n');
        joined.extend_from_slice(line);
    }
    Cow::Owned(joined)
}

#[cfg(test)]
mod tests {
    use tidegate_tower::TokenUsage;

    use super::*;

    const DELTA: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"abc\"}}],\"usage\":null}";
    const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2}}";

    /// What is passed on of `text`, which arrives in pieces of `size` bytes, and its tokens.
    fn pass(text: &str, size: usize, withholds_usage: bool) -> (String, TokenUsage) {
        let (mut stream, mut count) = (EventStream::new(withholds_usage), TokenCount::default());
        let mut passed = Vec::new();
        for chunk in text.as_bytes().chunks(size) {
            passed.extend_from_slice(&stream.push(Bytes::copy_from_slice(chunk), &mut count));
        }
        passed.extend_from_slice(&stream.finish(&mut count));
        (String::from_utf8(passed).unwrap(), count.tokens(100))
    }

    #[test]
    fn events_are_found_and_withheld_wherever_their_bytes_are_cut() {
        for end in ["\n", "\r\n", "\r"] {
            let blank = format!("{end}{end}");
            let comment = format!(": keep-alive{blank}");
            let before = format!("event: x{end}{DELTA}{blank}{comment}{DELTA}{blank}");
            let text = format!("{before}{USAGE}{blank}data: [DONE]{blank}");
            let expected = format!("{before}data: [DONE]{blank}");
            for size in 1..=text.len() {
                let (passed, tokens) = pass(&text, size, false);
                assert_eq!((passed, tokens), (text.clone(), TokenUsage { input: 7, output: 2 }), "{size} {end:?}");
                let (passed, tokens) = pass(&text, size, true);
                assert_eq!(tokens, TokenUsage { input: 7, output: 2 }, "{size} {end:?}");
                assert_eq!(passed, expected, "{size} {end:?}");
            }
        }
    }

    #[test]
    fn a_stream_that_ends_within_an_event_is_counted_and_passed_on() {
        let text = format!("{DELTA}\n\n{DELTA}");
        assert_eq!(pass(&text, 10, true), (text.clone(), TokenUsage { input: 100, output: 2 }));
        let text = format!("{DELTA}\n\n{USAGE}");
        let (passed, tokens) = pass(&text, 10, true);
        assert_eq!((passed, tokens), (format!("{DELTA}\n\n"), TokenUsage { input: 7, output: 2 }));
        let cut = &DELTA[..DELTA.len() - 5];
        let (passed, tokens) = pass(&format!("{DELTA}\n\n{cut}"), 10, true);
        assert!(passed.ends_with(cut) && tokens.output > 1, "{passed} {tokens:?}");
    }

    #[test]
    fn an_event_that_is_too_long_is_passed_on_at_once_and_counts_by_its_length() {
        let long = format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{}\"}}}}]}}\n\n", "x".repeat(10 << 20));
        let text = format!("{DELTA}\n\n{long}{DELTA}\n\n");
        for withholds in [false, true] {
            let (mut stream, mut count) = (EventStream::new(withholds), TokenCount::default());
            let (mut passed, mut sent) = (0, 0);
            for chunk in text.as_bytes().chunks(10_000) {
                sent += chunk.len();
                passed += stream.push(Bytes::copy_from_slice(chunk), &mut count).len();
                assert!(stream.partial.capacity() <= MAX_EVENT_BYTES && sent - passed <= MAX_EVENT_BYTES);
            }
            assert_eq!(passed, text.len());
            let tokens = count.tokens(0).output;
            assert!((long.len() as u64 / 4..=long.len() as u64 / 4 + 4).contains(&tokens), "{tokens}");
        }
    }

    /// The last event of OpenAI's responses repeats the instructions and the answer.
    #[test]
    fn a_long_event_states_its_usage_wherever_its_bytes_are_cut() {
        let text = "x".repeat(MAX_EVENT_BYTES);
        let created = format!(r#"{{"type":"response.created","response":{{"instructions":"{text}","usage":null}}}}"#);
        let completed = format!(
            r#"{{"type":"response.completed","response":{{"output":"{text}","usage":{{"input_tokens":7,"output_tokens":2}}}}}}"#
        );
        let delta = r#"{"type":"response.output_text.delta","delta":"abc"}"#;
        let begin = format!("\u{feff}event: response.created\ndata: {created}\n\ndata: {delta}\n\n");
        let end = format!("event: response.completed\ndata: {completed}\n\n");
        for size in [1, 2, 3, 7, 1000, 65_536, 1 << 20] {
            for withholds in [false, true] {
                assert_eq!(
                    pass(&begin, size, withholds),
                    (begin.clone(), TokenUsage { input: 100, output: 1 }),
                    "{size}"
                );
                let text = begin.clone() + &end;
                assert_eq!(pass(&text, size, withholds), (text.clone(), TokenUsage { input: 7, output: 2 }), "{size}");
            }
        }
    }

    /// Servers send a comment line, sometimes without a blank one, so that a connection stays open while the model works.
    #[test]
    fn a_comment_in_front_of_an_event_is_passed_on_at_once() {
        for end in ["\n", "\r\n", "\r"] {
            let comment = format!(": keep-alive{end}");
            let text = format!(
                "{comment}{comment}{DELTA}{end}{comment}{end}{comment}{USAGE}{end}{end}{comment}{DELTA}{end}{end}"
            );
            let expected = text.replace(&format!("{USAGE}{end}{end}"), "");
            for size in 1..=text.len() {
                let (passed, tokens) = pass(&text, size, true);
                assert_eq!((passed, tokens), (expected.clone(), TokenUsage { input: 7, output: 2 }), "{size} {end:?}");
            }
            let (mut stream, mut count) = (EventStream::new(true), TokenCount::default());
            for chunk in [comment.clone(), comment, format!(": a{end}")] {
                let chunk = Bytes::from(chunk);
                assert_eq!(stream.push(chunk.clone(), &mut count), chunk, "{end:?}");
            }
            assert_eq!(stream.push(format!("{DELTA}{end}: within{end}").into(), &mut count), Bytes::new());
        }
    }

    #[test]
    fn a_line_end_that_is_cut_within_a_long_event_is_passed_on() {
        let (mut stream, mut count) = (EventStream::new(true), TokenCount::default());
        let long = format!("data: {}\r", "x".repeat(MAX_EVENT_BYTES));
        assert!(stream.push(format!("{USAGE}\n\n").into(), &mut count).is_empty());
        assert_eq!(stream.push(long.clone().into(), &mut count).len(), long.len());
        assert_eq!(&*stream.push("\ndata: y\n\n".into(), &mut count), b"\ndata: y\n\n");
    }

    #[test]
    fn the_data_of_an_event_may_have_several_lines() {
        assert_eq!(&*data(b"data: {\"a\":\ndata:1}\nid: 7\n\n"), b"{\"a\":\n1}");
        assert_eq!(&*data(b"\xef\xbb\xbfdata:x\r\n\r\n"), b"x");
        assert_eq!(&*data(b": data: x\n\n"), b"");
    }
}
