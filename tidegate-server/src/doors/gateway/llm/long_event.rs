//! `LongEvent`: an event of a stream that is too long to be kept. Its bytes are read as they come, for its type and its usage.

use super::json_usage::UsageScanner;
use super::stream_event::EventType;
use super::token_count::TokenCount;

const DATA: &[u8] = b"data:";

/// An event of which only the usage is read.
///
/// It counts by its length, unless its type says that it is no part of the answer: the events of OpenAI's responses repeat instructions,
/// tools and the whole answer.
#[derive(Debug, Default)]
pub(super) struct LongEvent {
    scanner: UsageScanner,
    line: LinePart,
    /// The length of its data, as far as it is counted.
    counted: u64,
}

/// The part of a line to which the next byte belongs.
#[derive(Clone, Copy, Debug)]
enum LinePart {
    /// The name of the field, of which this many bytes are that of data.
    Name(usize),
    /// The first byte of data, which may be a space that is no part of it.
    First,
    Data,
    /// A field without data.
    Other,
}

impl LongEvent {
    /// Reads further bytes.
    pub(super) fn push(&mut self, bytes: &[u8], count: &mut TokenCount) {
        let mut data_bytes = 0;
        for byte in bytes {
            self.line = match (self.line, byte) {
                // The end of a line, or a byte order mark.
                (_, b'\n' | b'\r') | (LinePart::Name(0), 0xef | 0xbb | 0xbf) => LinePart::Name(0),
                (LinePart::Name(length), _) if DATA[length] != *byte => LinePart::Other,
                (LinePart::Name(length), _) if length + 1 == DATA.len() => LinePart::First,
                (LinePart::Name(length), _) => LinePart::Name(length + 1),
                (LinePart::First, b' ') => LinePart::Data,
                (LinePart::First | LinePart::Data, byte) => {
                    data_bytes += 1;
                    self.scanner.push(&[*byte], count);
                    LinePart::Data
                }
                (LinePart::Other, _) => LinePart::Other,
            };
        }
        if self.scanner.event_type().is_none_or(EventType::is_delta) {
            count.add_unread(data_bytes);
            self.counted += data_bytes;
        } else {
            count.remove_unread(std::mem::take(&mut self.counted));
        }
    }

    /// The event has ended.
    pub(super) fn end(&self, count: &mut TokenCount) {
        if self.scanner.event_type() == Some(EventType::Last) {
            count.set_complete();
        }
    }
}

impl Default for LinePart {
    fn default() -> Self {
        Self::Name(0)
    }
}

#[cfg(test)]
mod tests {
    use tidegate_tower::TokenUsage;

    use super::*;

    /// The tokens of an event, wherever its bytes are cut, and whether the stream is complete.
    fn read(event: &str) -> (u64, u64, bool) {
        let mut results = [1, 2, 7, 1000].map(|size| {
            let (mut long, mut count) = (LongEvent::default(), TokenCount::default());
            event.as_bytes().chunks(size).for_each(|chunk| long.push(chunk, &mut count));
            long.end(&mut count);
            let TokenUsage { input, output } = count.tokens(1000);
            (input, output, count.is_complete())
        });
        results.sort_unstable();
        assert_eq!(results[0], results[results.len() - 1], "{event}");
        results[0]
    }

    #[test]
    fn a_long_event_states_its_usage_and_counts_by_its_length_if_it_may_be_a_part_of_the_answer() {
        let text = "x".repeat(400);
        let usage = r#"{"input_tokens":7,"output_tokens":5}"#;
        let last = format!(r#"{{"type":"response.completed","response":{{"a":"{text}","usage":{usage}}}}}"#);
        for event in [
            format!("event: response.completed\ndata: {last}\n\n"),
            format!("\u{feff}data:{last}\r\n\r\n"),
            format!("data: {}\n\n", last.replace(":{", ":\ndata: {")),
        ] {
            assert_eq!(read(&event), (7, 5, true), "{event}");
        }
        let created = format!(r#"data: {{"type":"response.created","response":{{"a":"{text}","usage":null}}}}"#);
        assert_eq!(read(&created), (1000, 0, false), "it repeats the request");
        let delta = format!(r#"data: {{"type":"response.output_text.delta","delta":"{text}"}}"#);
        assert_eq!(read(&delta), (1000, (delta.len() as u64 - 6).div_ceil(4), false));
        let choice = format!(r#"data: {{"choices":[{{"delta":{{"content":"{text}"}}}}]}}"#);
        assert_eq!(read(&choice), (1000, (choice.len() as u64 - 6).div_ceil(4), false));
        assert_eq!(read(&format!(": {text}\nid: {text}\n\n")), (1000, 0, false), "no data");
    }
}
