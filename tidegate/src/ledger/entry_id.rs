//! `EntryId`: the identity of a ledger entry, by which it is counted once.

use std::fmt;
use std::str::FromStr;

/// Generations are below this, so that they are exact in a Lua number.
pub const MAX_GENERATION: u64 = 1 << 53;

/// The identity of a ledger entry.
///
/// ```
/// use tidegate::spi::EntryId;
///
/// let id = EntryId { generation: 7, partition: 31, millis: 1_700_000_000_000, sequence: 2 };
/// assert_eq!(id.to_string(), "7.31.1700000000000-2");
/// assert_eq!(id.to_string().parse(), Ok(id));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId {
    /// A random number, drawn anew whenever the state of the partition was lost. So ids from before and after a loss differ.
    pub generation: u64,
    /// The partition.
    pub partition: u16,
    /// The time at which a stream got the entry, in milliseconds. Two entries of a stream differ in it or in the sequence.
    pub millis: u64,
    /// The number among the entries of the same millisecond.
    pub sequence: u64,
}

/// A text that is no id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryIdError;

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { generation, partition, millis, sequence } = self;
        write!(f, "{generation}.{partition}.{millis}-{sequence}")
    }
}

impl FromStr for EntryId {
    type Err = EntryIdError;

    fn from_str(text: &str) -> Result<Self, EntryIdError> {
        let parse = || {
            let (generation, rest) = text.split_once('.')?;
            let (partition, rest) = rest.split_once('.')?;
            let (millis, sequence) = rest.split_once('-')?;
            Some(Self {
                generation: generation.parse().ok()?,
                partition: partition.parse().ok()?,
                millis: millis.parse().ok()?,
                sequence: sequence.parse().ok()?,
            })
        };
        parse().ok_or(EntryIdError)
    }
}

impl fmt::Display for EntryIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not the id of a ledger entry; one looks like 7.31.1700000000000-2")
    }
}

impl std::error::Error for EntryIdError {}
