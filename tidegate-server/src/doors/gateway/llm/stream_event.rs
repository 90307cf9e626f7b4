//! `StreamEvent`: what an event of a stream says about tokens. All other parts of it are skipped.

use serde::de::{IgnoredAny, MapAccess, SeqAccess};

use super::lenient_json::{Lenient, MemberName, ReadJson, Scalar};
use super::stated_usage::StatedUsage;

/// An event of OpenAI's chat completions and completions (`choices`), or of OpenAI's responses and Anthropic's messages (`type`).
#[derive(Default)]
pub(super) struct StreamEvent {
    pub(super) kind: EventType,
    /// The usage so far, or of the whole response.
    pub(super) usage: Option<StatedUsage>,
    /// That of Anthropic's first event: the input, and an output of 1 before anything is done.
    pub(super) first_usage: Option<StatedUsage>,
    pub(super) choices: Option<Choices>,
    delta: DeltaText,
}

/// The type of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum EventType {
    /// No part of the answer, though it may repeat parts.
    #[default]
    Other,
    /// A part of the answer.
    Delta,
    /// A part of the answer in Anthropic's form, or a signature.
    ContentBlockDelta,
    /// The last event.
    Last,
}

/// The choices of an event, each of which has a part of an answer of its own.
#[derive(Default)]
pub(super) struct Choices {
    pub(super) count: u64,
    /// The parts that are not empty.
    pub(super) deltas: u64,
    /// Their length.
    pub(super) text_bytes: u64,
}

/// The length of all texts in a value.
#[derive(Default)]
struct TextBytes(u64);

#[derive(Default)]
struct DeltaText {
    /// The length of all texts except a role.
    all: u64,
    /// The length of those that a model wrote, in Anthropic's form.
    content: u64,
}

/// The `usage` in an object.
#[derive(Default)]
struct UsageHolder(Option<StatedUsage>);

/// The length of the part of one choice.
#[derive(Default)]
struct Choice(u64);

impl StreamEvent {
    /// The length of the part of the answer in an event with a type.
    pub(super) const fn delta_bytes(&self) -> u64 {
        match self.kind {
            EventType::Delta => self.delta.all,
            EventType::ContentBlockDelta => self.delta.content,
            EventType::Other | EventType::Last => 0,
        }
    }
}

impl EventType {
    fn from_name(name: &str) -> Self {
        match name {
            "message_stop" | "response.completed" | "response.incomplete" | "response.failed" => Self::Last,
            "content_block_delta" => Self::ContentBlockDelta,
            _ if name.rsplit('.').next() == Some("delta") => Self::Delta,
            _ => Self::Other,
        }
    }

    /// Whether an event of this type may have a part of the answer.
    pub(super) const fn is_delta(self) -> bool {
        matches!(self, Self::Delta | Self::ContentBlockDelta)
    }
}

impl ReadJson for StreamEvent {
    fn read_members<'de, A: MapAccess<'de>>(&mut self, mut members: A) -> Result<(), A::Error> {
        while let Some(MemberName(name)) = members.next_key()? {
            match &*name {
                "type" => Lenient(self.kind) = members.next_value()?,
                "usage" => merge(&mut self.usage, members.next_value::<Lenient<_>>()?.0),
                "response" => merge(&mut self.usage, members.next_value::<Lenient<UsageHolder>>()?.0.0),
                "message" => merge(&mut self.first_usage, members.next_value::<Lenient<UsageHolder>>()?.0.0),
                "delta" => {
                    let Lenient(DeltaText { all, content }) = members.next_value()?;
                    self.delta.all += all;
                    self.delta.content += content;
                }
                "choices" => {
                    if let Lenient(Some(Choices { count, deltas, text_bytes })) = members.next_value()? {
                        let choices = self.choices.get_or_insert_default();
                        choices.count += count;
                        choices.deltas += deltas;
                        choices.text_bytes += text_bytes;
                    }
                }
                _ => drop(members.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

fn merge(usage: &mut Option<StatedUsage>, other: Option<StatedUsage>) {
    if let Some(other) = other {
        usage.get_or_insert_default().merge(other);
    }
}

impl ReadJson for EventType {
    fn read_scalar(&mut self, scalar: Scalar<'_>) {
        if let Scalar::Text(name) = scalar {
            *self = Self::from_name(name);
        }
    }
}

impl ReadJson for UsageHolder {
    fn read_members<'de, A: MapAccess<'de>>(&mut self, mut members: A) -> Result<(), A::Error> {
        while let Some(MemberName(name)) = members.next_key()? {
            match &*name {
                "usage" => merge(&mut self.0, members.next_value::<Lenient<_>>()?.0),
                _ => drop(members.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// `None` if it is no list.
impl ReadJson for Option<Choices> {
    fn read_items<'de, A: SeqAccess<'de>>(&mut self, mut items: A) -> Result<(), A::Error> {
        let choices = self.insert(Choices::default());
        while let Some(Lenient(Choice(bytes))) = items.next_element()? {
            choices.count += 1;
            choices.deltas += u64::from(bytes > 0);
            choices.text_bytes += bytes;
        }
        Ok(())
    }
}

/// Of chat completions (`delta`) or completions (`text`).
impl ReadJson for Choice {
    fn read_members<'de, A: MapAccess<'de>>(&mut self, mut members: A) -> Result<(), A::Error> {
        while let Some(MemberName(name)) = members.next_key()? {
            self.0 += match &*name {
                "delta" => members.next_value::<Lenient<DeltaText>>()?.0.all,
                "text" => members.next_value::<Lenient<TextBytes>>()?.0.0,
                _ => members.next_value::<IgnoredAny>().map(|_| 0)?,
            };
        }
        Ok(())
    }
}

impl ReadJson for DeltaText {
    fn read_scalar(&mut self, scalar: Scalar<'_>) {
        if let Scalar::Text(text) = scalar {
            self.all += text.len() as u64;
        }
    }

    fn read_members<'de, A: MapAccess<'de>>(&mut self, mut members: A) -> Result<(), A::Error> {
        while let Some(MemberName(name)) = members.next_key()? {
            let Lenient(TextBytes(bytes)) = members.next_value()?;
            if name != "role" {
                self.all += bytes;
            }
            if matches!(&*name, "text" | "partial_json" | "thinking") {
                self.content += bytes;
            }
        }
        Ok(())
    }
}

impl ReadJson for TextBytes {
    fn read_scalar(&mut self, scalar: Scalar<'_>) {
        if let Scalar::Text(text) = scalar {
            self.0 += text.len() as u64;
        }
    }

    fn read_items<'de, A: SeqAccess<'de>>(&mut self, mut items: A) -> Result<(), A::Error> {
        while let Some(Lenient(Self(bytes))) = items.next_element()? {
            self.0 += bytes;
        }
        Ok(())
    }

    fn read_members<'de, A: MapAccess<'de>>(&mut self, mut members: A) -> Result<(), A::Error> {
        while let Some((IgnoredAny, Lenient(Self(bytes)))) = members.next_entry()? {
            self.0 += bytes;
        }
        Ok(())
    }
}
