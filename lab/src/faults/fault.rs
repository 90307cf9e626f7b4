//! `Fault`: the faults of a store by name, with the promises to callers during each. Only a table: the suite runs it, and
//! `docs/faults.md` shows it.

use tidegate::OnFailure;
use tidegate::StoreErrorKind::{self, Refused, Unavailable};

use super::load::TIMEOUT;
use conformance::proxy::NetworkFault;

/// The policies, in the order of tables.
pub const POLICIES: [OnFailure; 6] =
    [OnFailure::Local, OnFailure::Share, OnFailure::Open, OnFailure::Closed, OnFailure::Degraded, OnFailure::Static];

/// A fault of the store or of an instance.
#[allow(missing_docs, reason = "the table below describes them")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Timeout,
    Unavailable,
    Hang,
    Latency,
    SlightLatency,
    Cut,
    Trickle,
    NoScript,
    DataLost,
    OutOfMemory,
    ReadOnly,
    Failover,
    SlotMove,
    Promotion,
    ClusterDown,
    Loading,
    Busy,
    ClockJumps,
    InstanceRestart,
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
pub(super) enum Effect {
    /// Nothing: the store decides everything.
    Unnoticed,
    /// The failure policies apply, for one of these reasons, until the fault is repaired.
    Outage(&'static [StoreErrorKind]),
    /// The same, until the servers recover by themselves.
    SelfHealingOutage(&'static [StoreErrorKind]),
}

/// State that the store has lost after a fault, and so may grant again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StateLoss {
    Nothing,
    /// The last writes, which had not reached the replica.
    Unreplicated,
    Everything,
}

impl Fault {
    /// The name.
    pub const fn name(self) -> &'static str {
        self.row().0
    }

    /// How the suite injects it.
    pub const fn injection(self) -> &'static str {
        self.row().1
    }

    pub(super) const fn effect(self) -> Effect {
        self.row().2
    }

    pub(super) const fn loss(self) -> StateLoss {
        match self {
            Self::DataLost => StateLoss::Everything,
            Self::Failover | Self::Promotion => StateLoss::Unreplicated,
            _ => StateLoss::Nothing,
        }
    }

    /// What a proxy does to the connections, if the fault is one of the network.
    pub(super) fn of_network(self) -> Option<NetworkFault> {
        match self {
            Self::Timeout => Some(NetworkFault::Blackhole),
            Self::Latency => Some(NetworkFault::DelayReplies(TIMEOUT * 2)),
            Self::SlightLatency => Some(NetworkFault::DelayReplies(TIMEOUT / 5)),
            Self::Cut => Some(NetworkFault::CutReplies(2)),
            Self::Trickle => Some(NetworkFault::Trickle(TIMEOUT / 4)),
            _ => None,
        }
    }

    /// Why decisions may be made without the store, in a run in which the servers answer in time apart from the fault. A server that is
    /// reachable but silent takes time to notice, most of all on a busy machine: calls may be refused as overloaded until then.
    pub(super) fn reasons(self) -> impl Iterator<Item = StoreErrorKind> {
        let is_silence = matches!(self, Self::Timeout | Self::Hang | Self::Latency | Self::Trickle);
        let reasons = match self.effect() {
            Effect::Unnoticed => &[],
            Effect::Outage(reasons) | Effect::SelfHealingOutage(reasons) => reasons,
        };
        reasons.iter().copied().chain(is_silence.then_some(StoreErrorKind::Overloaded))
    }

    /// The name, how the suite injects it, and the effect.
    const fn row(self) -> (&'static str, &'static str, Effect) {
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
