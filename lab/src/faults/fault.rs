//! `Fault`: the faults of a store by name, with the promises to callers during each. Only a table: the suite runs it, and
//! `docs/faults.md` shows it.

use tidegate::OnFailure;
use tidegate::StoreErrorKind::{self, Refused, Unavailable};

/// The policies, in the order of tables.
pub const POLICIES: [OnFailure; 6] =
    [OnFailure::Local, OnFailure::Share, OnFailure::Open, OnFailure::Closed, OnFailure::Degraded, OnFailure::Static];

/// A fault of the store or of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Packets are lost in both directions.
    Timeout,
    /// The server is killed.
    Unavailable,
    /// The server hangs (SIGSTOP).
    Hang,
    /// Replies take longer than the budget.
    Latency,
    /// Replies are slow but within the budget.
    SlightLatency,
    /// Connections close in the middle of a reply.
    Cut,
    /// Replies come byte by byte.
    Trickle,
    /// The script cache is flushed.
    NoScript,
    /// The server restarts empty.
    DataLost,
    /// The server is out of memory.
    OutOfMemory,
    /// The server becomes a replica.
    ReadOnly,
    /// The primary behind sentinels is killed.
    Failover,
    /// A slot moves to another server of the cluster.
    SlotMove,
    /// A primary of a cluster is killed.
    Promotion,
    /// The cluster is down.
    ClusterDown,
    /// The server is loading its data.
    Loading,
    /// The server runs a long script.
    Busy,
    /// The clock of the server jumps.
    ClockJumps,
    /// An instance restarts.
    InstanceRestart,
    /// Many new subjects arrive.
    Flood,
}

/// Every fault.
pub const FAULTS: [Fault; 20] = [
    Fault::Timeout,
    Fault::Unavailable,
    Fault::Hang,
    Fault::Latency,
    Fault::SlightLatency,
    Fault::Cut,
    Fault::Trickle,
    Fault::NoScript,
    Fault::DataLost,
    Fault::OutOfMemory,
    Fault::ReadOnly,
    Fault::Failover,
    Fault::SlotMove,
    Fault::Promotion,
    Fault::ClusterDown,
    Fault::Loading,
    Fault::Busy,
    Fault::ClockJumps,
    Fault::InstanceRestart,
    Fault::Flood,
];

/// The effect of a fault on callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: the store decides everything.
    Unnoticed,
    /// The failure policies apply, for one of these reasons, until the fault is repaired.
    Outage(&'static [StoreErrorKind]),
    /// The same, until the servers recover by themselves.
    SelfHealingOutage(&'static [StoreErrorKind]),
}

/// State that the store has lost after a fault, and so may grant again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateLoss {
    /// Nothing.
    Nothing,
    /// The last writes, which had not reached the replica.
    Unreplicated,
    /// Everything.
    Everything,
}

impl Fault {
    /// The name.
    pub const fn name(self) -> &'static str {
        self.entry().0
    }

    /// How the suite injects it.
    pub const fn injection(self) -> &'static str {
        self.entry().1
    }

    /// The effect on callers.
    pub const fn effect(self) -> Effect {
        self.entry().2
    }

    /// The state that the store has lost afterwards.
    pub const fn loss(self) -> StateLoss {
        match self {
            Self::DataLost => StateLoss::Everything,
            Self::Failover | Self::Promotion => StateLoss::Unreplicated,
            _ => StateLoss::Nothing,
        }
    }

    /// Whether the server is reachable but silent, which takes time to notice, most of all on a busy machine. Calls may be refused as
    /// overloaded until then.
    pub const fn is_silence(self) -> bool {
        matches!(self, Self::Timeout | Self::Hang | Self::Latency | Self::Trickle)
    }

    /// Why decisions may be made without the store, in a run in which the servers answer in time apart from the fault.
    pub fn reasons(self) -> impl Iterator<Item = StoreErrorKind> {
        let overloaded = self.is_silence().then_some(StoreErrorKind::Overloaded);
        self.effect().reasons().iter().copied().chain(overloaded)
    }

    const fn entry(self) -> (&'static str, &'static str, Effect) {
        use Effect::{Outage, SelfHealingOutage, Unnoticed};
        const UNAVAILABLE: &[StoreErrorKind] = &[Unavailable];
        const REFUSED_OR_UNAVAILABLE: &[StoreErrorKind] = &[Refused, Unavailable];
        match self {
            Self::Timeout => ("timeout", "packets are dropped in both directions", Outage(UNAVAILABLE)),
            Self::Unavailable => {
                ("unavailable", "the server is killed, and restarted with its data", Outage(UNAVAILABLE))
            }
            Self::Hang => ("hang", "the server is paused (SIGSTOP), and resumed later", Outage(UNAVAILABLE)),
            Self::Latency => ("latency", "replies take twice the timeout", Outage(UNAVAILABLE)),
            Self::SlightLatency => ("latency below the timeout", "replies take a fifth of the timeout", Unnoticed),
            Self::Cut => {
                ("cut mid-reply", "each connection breaks two bytes into the reply to a decision", Outage(UNAVAILABLE))
            }
            Self::Trickle => {
                ("trickle", "replies come byte by byte, each after a quarter of the timeout", Outage(UNAVAILABLE))
            }
            Self::NoScript => ("NOSCRIPT", "the scripts are flushed repeatedly", Unnoticed),
            Self::DataLost => ("data lost", "the server is killed, and restarted empty", Outage(UNAVAILABLE)),
            Self::OutOfMemory => ("OOM", "`maxmemory` becomes less than the server uses, with `noeviction`", Unnoticed),
            Self::ReadOnly => {
                ("READONLY", "the server becomes a replica, and a primary again", Outage(REFUSED_OR_UNAVAILABLE))
            }
            Self::Failover => ("sentinel failover", "the primary is killed", SelfHealingOutage(REFUSED_OR_UNAVAILABLE)),
            Self::SlotMove => ("MOVED and ASK", "the slot moves to another server and back, twice", Unnoticed),
            Self::Promotion => (
                "promotion",
                "the primary of the slot is killed; it has a replica",
                SelfHealingOutage(REFUSED_OR_UNAVAILABLE),
            ),
            Self::ClusterDown => ("CLUSTERDOWN", "another slot has no server", Outage(REFUSED_OR_UNAVAILABLE)),
            Self::Loading => {
                ("LOADING", "the server is killed, and loads its data slowly", Outage(REFUSED_OR_UNAVAILABLE))
            }
            Self::Busy => ("BUSY", "a script does not end", Outage(REFUSED_OR_UNAVAILABLE)),
            Self::ClockJumps => {
                ("clock jumps", "the clock jumps ten minutes forward, ten back, and to the right time", Unnoticed)
            }
            Self::InstanceRestart => ("instance restart", "one of two instances is restarted", Unnoticed),
            Self::Flood => ("subject flood", "five thousand new subjects under another rule", Unnoticed),
        }
    }
}

impl Effect {
    /// Why decisions may be made without the store.
    pub const fn reasons(self) -> &'static [StoreErrorKind] {
        match self {
            Self::Unnoticed => &[],
            Self::Outage(reasons) | Self::SelfHealingOutage(reasons) => reasons,
        }
    }
}
