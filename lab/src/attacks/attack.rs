//! `Attack`: what an attacker can do, by name, and in which states of the store the suite does it. Only a table: the suite runs it,
//! and `docs/attacks.md` shows it.

/// What an attacker does.
#[allow(missing_docs, reason = "the table below describes them")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    ConnectionFlood,
    LibraryBurst,
    MixedBurst,
    HangUps,
    StreamResets,
    HeldFutures,
    MadeUpKeys,
    ExhaustedClients,
    SubjectFlood,
    SlowReads,
}

/// Every attack.
pub const ATTACKS: [Attack; 10] = [
    Attack::ConnectionFlood,
    Attack::LibraryBurst,
    Attack::MixedBurst,
    Attack::HangUps,
    Attack::StreamResets,
    Attack::HeldFutures,
    Attack::MadeUpKeys,
    Attack::ExhaustedClients,
    Attack::SubjectFlood,
    Attack::SlowReads,
];

/// Where an attacker enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Door {
    /// Over HTTP.
    Gateway,
    /// In the process of the application.
    Library,
}

/// How the store is during an attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreState {
    /// It answers at once.
    Well,
    /// Its replies are late by this many milliseconds, and within the timeout.
    Slow(u64),
    /// It does not answer.
    Silent,
    /// It is out of memory, with `noeviction`.
    Full,
}

/// The longest delay of a store that still answers within the default timeout of 25 ms, measured with the accuracy of a timer.
const MAX_DELAY_MILLIS: u64 = 19;

impl Attack {
    /// The name.
    pub const fn name(self) -> &'static str {
        self.row().0
    }

    pub(super) const fn instances(self) -> usize {
        if matches!(self, Self::MixedBurst | Self::HangUps | Self::HeldFutures) { 2 } else { 1 }
    }

    /// The limit of each API key. It refills too slowly to matter.
    pub(super) const fn limit(self) -> u64 {
        match self {
            Self::ConnectionFlood => 100,
            Self::ExhaustedClients => 4,
            Self::SubjectFlood => 2,
            _ => 10,
        }
    }

    /// The states of the store in which it is run.
    pub fn states(self) -> Vec<StoreState> {
        let slow = match self {
            Self::HangUps => 1..=MAX_DELAY_MILLIS,
            _ => 8..=8,
        };
        let mut states: Vec<_> = [StoreState::Well].into_iter().chain(slow.map(StoreState::Slow)).collect();
        // The first one makes the store full. Without the store, an instance remembers a million subjects, more than the other creates.
        if !matches!(self, Self::MadeUpKeys | Self::SubjectFlood) {
            states.extend([StoreState::Silent, StoreState::Full]);
        }
        states
    }

    /// The name, where the attacker enters, and what the attacker does.
    pub(super) const fn row(self) -> (&'static str, Door, &'static str) {
        use Door::{Gateway, Library};
        match self {
            Self::ConnectionFlood => {
                ("connection flood", Gateway, "one subject on many connections, each with one request after another")
            }
            Self::LibraryBurst => ("burst", Library, "checks of one subject, all at the same moment"),
            Self::MixedBurst => {
                ("mixed burst", Library, "the same on limits of every kind, alone and several in one plan")
            }
            Self::HangUps => (
                "hang-ups",
                Library,
                "bursts of 20 calls, dropped before, while or after the reply comes; a patient caller beside them",
            ),
            Self::StreamResets => (
                "stream resets",
                Gateway,
                "HTTP/2 streams, reset at once or while the store decides; a patient client beside them",
            ),
            Self::HeldFutures => {
                ("held futures", Library, "calls that are polled once and kept; a patient caller beside them")
            }
            Self::MadeUpKeys => (
                "made-up keys",
                Gateway,
                "new API keys until the store is full, then a key that was used up before, and a new one",
            ),
            Self::ExhaustedClients => {
                ("exhausted clients", Gateway, "subjects that have used up their limits, one connection each")
            }
            Self::SubjectFlood => (
                "subject flood",
                Gateway,
                "one request of each of many new addresses of one network; newcomers from other networks beside them",
            ),
            Self::SlowReads => ("slow reads", Gateway, "connections that send many requests and read no response"),
        }
    }
}

impl StoreState {
    /// The name in tables.
    pub fn name(self) -> String {
        match self {
            Self::Well => "well".to_owned(),
            Self::Slow(millis) => format!("{millis} ms late"),
            Self::Silent => "silent".to_owned(),
            Self::Full => "full".to_owned(),
        }
    }
}
