//! `EventStream`: splits a stream of server-sent events into events as their bytes arrive, and holds back those that the client did not
//! ask for. It keeps at most one incomplete event.

use std::borrow::Cow;

use bytes::Bytes;
use smallvec::SmallVec;

use super::token_count::{EventKind, TokenCount};

/// The longest event that is read. A longer one is passed on, and counts by its length.
pub(super) const MAX_EVENT_BYTES: usize = 1 << 20;

/// A stream of events on its way to the client.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
pub(super) struct EventStream {
    /// The bytes of the incomplete event, if it can still be read.
    partial: Vec<u8>,
    /// Whether the incomplete event is too long. Its bytes are passed on as they come.
    is_oversized: bool,
    /// Whether the current line is empty so far.
    is_line_empty: bool,
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
            is_oversized: false,
            is_line_empty: true,
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
        let is_between_events = self.partial.is_empty() && !self.is_oversized;
        if self.after_return && is_between_events && chunk.first() == Some(&b'\n') {
            (self.after_return, start) = (false, 1);
            if self.is_last_kept {
                kept.push(0, 1);
            }
        }
        while let Some(length) = self.find_end(&chunk[start..]) {
            let (mut event, end) = (std::mem::take(&mut self.partial), start + length);
            let is_within_chunk = event.is_empty();
            let kind = if is_within_chunk {
                self.end_event(&chunk[start..end], count)
            } else {
                event.extend_from_slice(&chunk[start..end]);
                self.end_event(&event, count)
            };
            self.is_last_kept = kind == EventKind::Plain;
            if self.is_last_kept && is_within_chunk {
                kept.push(start, end);
            } else if self.is_last_kept {
                kept.first = event;
            }
            start = end;
        }
        let is_continued = !self.partial.is_empty();
        if self.is_oversized {
            count.add_unread((chunk.len() - start) as u64);
            kept.push(start, chunk.len());
        } else {
            self.partial.extend_from_slice(&chunk[start..]);
        }
        if self.partial.len() > MAX_EVENT_BYTES {
            count.add_unread(self.partial.len() as u64);
            self.is_oversized = true;
            let partial = std::mem::take(&mut self.partial);
            if is_continued {
                kept.first = partial;
            } else {
                kept.push(start, chunk.len());
            }
        }
        if self.withholds_usage { kept.into_bytes(&chunk) } else { chunk }
    }

    /// Counts an event that has no end, and returns what was kept of it.
    pub(super) fn finish(&mut self, count: &mut TokenCount) -> Bytes {
        let partial = std::mem::take(&mut self.partial);
        let kind = if partial.is_empty() { EventKind::Plain } else { self.end_event(&partial, count) };
        if self.withholds_usage && kind == EventKind::Plain { partial.into() } else { Bytes::new() }
    }

    /// The length of the rest of the event in `bytes`, if its end is there.
    fn find_end(&mut self, bytes: &[u8]) -> Option<usize> {
        for (index, byte) in bytes.iter().enumerate() {
            match byte {
                b'\n' if self.after_return => self.after_return = false,
                b'\n' | b'\r' => {
                    self.after_return = *byte == b'\r';
                    if std::mem::replace(&mut self.is_line_empty, true) {
                        let is_pair = self.after_return && bytes.get(index + 1) == Some(&b'\n');
                        self.after_return &= !is_pair;
                        return Some(index + 1 + usize::from(is_pair));
                    }
                }
                _ => (self.is_line_empty, self.after_return) = (false, false),
            }
        }
        None
    }

    fn end_event(&mut self, event: &[u8], count: &mut TokenCount) -> EventKind {
        if std::mem::take(&mut self.is_oversized) || event.len() > MAX_EVENT_BYTES {
            count.add_unread(event.len() as u64);
            return EventKind::Plain;
        }
        let data = data(event);
        if data.is_empty() { EventKind::Plain } else { count.add_event(&data) }
    }
}

impl KeptParts {
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
        ranges.iter().for_each(|(start, end)| bytes.extend_from_slice(&chunk[*start..*end]));
        bytes.into()
    }
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
            for chunk in text.as_bytes().chunks(65_536) {
                sent += chunk.len();
                passed += stream.push(Bytes::copy_from_slice(chunk), &mut count).len();
                assert!(stream.partial.capacity() <= 2 * MAX_EVENT_BYTES && sent - passed <= MAX_EVENT_BYTES);
            }
            assert_eq!(passed, text.len());
            let tokens = count.tokens(0).output;
            assert!((long.len() as u64 / 4..=long.len() as u64 / 4 + 4).contains(&tokens), "{tokens}");
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
