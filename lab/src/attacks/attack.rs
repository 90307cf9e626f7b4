//! `Attack`: what an attacker can do, by name, and in which states of the store the suite does it. Only a table: the suite runs it,
//! and `docs/attacks.md` shows it.

/// What an attacker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Attack {
    /// One subject on many connections.
    ConnectionFlood,
    /// Many checks of one subject at the same moment.
    LibraryBurst,
    /// The same, on limits of every kind and plans of several checks.
    MixedBurst,
    /// Calls that are dropped before they are answered.
    HangUps,
    /// HTTP/2 streams that are reset before they are answered.
    StreamResets,
    /// Calls that are started and never continued.
    HeldFutures,
    /// Made-up API keys that fill the store.
    MadeUpKeys,
    /// Subjects that have used up their limits and continue.
    ExhaustedClients,
    /// Many new addresses of one network.
    SubjectFlood,
    /// Connections that read no response.
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
pub enum Door {
    /// The gateway, over HTTP.
    Gateway,
    /// The library, in the process of the application.
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

const STATES: [StoreState; 4] = [StoreState::Well, StoreState::Slow(8), StoreState::Silent, StoreState::Full];

impl Attack {
    /// The name.
    pub const fn name(self) -> &'static str {
        self.entry().0
    }

    /// What the attacker does.
    pub const fn description(self) -> &'static str {
        self.entry().1
    }

    /// Where the attacker enters.
    pub const fn door(self) -> Door {
        self.entry().2
    }

    /// The number of instances under attack.
    pub const fn instances(self) -> usize {
        match self {
            Self::MixedBurst | Self::HangUps | Self::HeldFutures => 2,
            _ => 1,
        }
    }

    /// The states of the store in which it is run.
    pub fn states(self) -> Vec<StoreState> {
        match self {
            Self::HangUps => {
                let slow = (1..=MAX_DELAY_MILLIS).map(StoreState::Slow);
                [StoreState::Well].into_iter().chain(slow).chain([StoreState::Silent, StoreState::Full]).collect()
            }
            // The first one makes the store full. Without the store, an instance remembers a million subjects, more than the other creates.
            Self::MadeUpKeys | Self::SubjectFlood => vec![StoreState::Well, StoreState::Slow(8)],
            _ => STATES.to_vec(),
        }
    }

    const fn entry(self) -> (&'static str, &'static str, Door) {
        use Door::{Gateway, Library};
        match self {
            Self::ConnectionFlood => {
                ("connection flood", "one subject on many connections, each with one request after another", Gateway)
            }
            Self::LibraryBurst => ("burst", "checks of one subject, all at the same moment", Library),
            Self::MixedBurst => {
                ("mixed burst", "the same on limits of every kind, alone and several in one plan", Library)
            }
            Self::HangUps => (
                "hang-ups",
                "bursts of 20 calls, dropped before, while or after the reply comes; a patient caller beside them",
                Library,
            ),
            Self::StreamResets => (
                "stream resets",
                "HTTP/2 streams, reset at once or while the store decides; a patient client beside them",
                Gateway,
            ),
            Self::HeldFutures => {
                ("held futures", "calls that are polled once and kept; a patient caller beside them", Library)
            }
            Self::MadeUpKeys => (
                "made-up keys",
                "new API keys until the store is full, then a key that was used up before, and a new one",
                Gateway,
            ),
            Self::ExhaustedClients => {
                ("exhausted clients", "subjects that have used up their limits, one connection each", Gateway)
            }
            Self::SubjectFlood => (
                "subject flood",
                "one request of each of many new addresses of one network; newcomers from other networks beside them",
                Gateway,
            ),
            Self::SlowReads => ("slow reads", "connections that send many requests and read no response", Gateway),
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

    /// Whether the store answers.
    pub const fn answers(self) -> bool {
        !matches!(self, Self::Silent)
    }
}
