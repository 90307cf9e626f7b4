//! `UntrustedForwarded`: counts forwarded headers, such as `X-Forwarded-For`, of senders that are not trusted. They are ignored, so behind a
//! proxy that the rule file does not trust, all clients count as one.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tidegate_rules::FrontDoor;

/// One counter for each front end that reads such headers. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct UntrustedForwarded {
    gateway: Counter,
    forward_auth: Counter,
    check: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DoorLabel {
    door: &'static str,
}

impl UntrustedForwarded {
    /// Counters at zero, in `registry`.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let family = Family::<DoorLabel, Counter>::default();
        let help = "Requests with a forwarded address from a sender that is not trusted, by front end";
        registry.register("tidegate_untrusted_forwarded", help, family.clone());
        let counter = |door: FrontDoor| family.get_or_create(&DoorLabel { door: door.as_str() }).clone();
        let (gateway, forward_auth) = (counter(FrontDoor::Gateway), counter(FrontDoor::ForwardAuth));
        Self { gateway, forward_auth, check: counter(FrontDoor::Check) }
    }

    /// Counts one request. The first one at each door is logged, without anything that its sender chose.
    pub(crate) fn count(&self, door: FrontDoor, header: &str) {
        if self.counter(door).inc() > 0 {
            return;
        }
        let door = door.as_str();
        tracing::warn!(
            target: "tidegate::server",
            door,
            header,
            "a sender that is not trusted sends {header}, which is ignored: the sender counts as the client. If it is your proxy, list its \
             network in `trusted_proxies` below `identify`, or all its clients share their limits; if clients connect directly, it is a \
             client's own, and all is well. Logged once; tidegate_untrusted_forwarded_total counts them"
        );
    }

    const fn counter(&self, door: FrontDoor) -> &Counter {
        match door {
            FrontDoor::Gateway => &self.gateway,
            FrontDoor::ForwardAuth => &self.forward_auth,
            _ => &self.check,
        }
    }

    #[cfg(test)]
    pub(crate) fn value(&self, door: FrontDoor) -> u64 {
        self.counter(door).get()
    }
}
