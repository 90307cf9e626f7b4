//! `PreparedPlace`: a place in a queue that is given back together with the places in other slots of a cluster, or not at all.
//!
//! No script sees all keys of the refund. So the places are asked first whether they can go back, by refunds of nothing, and then given back
//! one after the other. If one of them no longer can, those before it are charged again.

use futures_util::future::join_all;
use tidegate::StoreError;
use tidegate::spi::algorithm::{Op, TakePosition};

use super::{AdjustCall, CallResults, Indexed};
use crate::error::not_applied;
use crate::slot_map::slot_of;
use crate::store::RedisStore;

/// A place in a queue, ready to be given back.
pub(super) struct PreparedPlace {
    slot: u16,
    /// Gives nothing back.
    ask: AdjustCall,
    refund: AdjustCall,
    /// Takes the place again if another place of the same request cannot go back.
    charge: AdjustCall,
}

/// What became of places, and of what is bundled with them.
pub(super) enum PlacesOutcome {
    GoneBack,
    /// One of them has others behind it, so all that is bundled stays taken.
    StayTaken,
    /// The rest is not sent, because of this error.
    Failed(StoreError),
}

impl RedisStore {
    pub(super) fn prepare_place(&self, (index, place): Indexed<'_>) -> PreparedPlace {
        let (mut ask, mut charge) = (place, place);
        if let Op::Refund { cost, position } = place.op {
            ask.op = Op::Refund { cost: 0, position };
            (charge.op, charge.bundled) = (Op::Charge { cost, position: TakePosition::default() }, false);
        }
        let call = |adjustment| self.adjust_call(&[(index, adjustment)], true);
        PreparedPlace {
            slot: slot_of(place.key.partition()),
            ask: call(ask),
            refund: call(place),
            charge: call(charge),
        }
    }

    /// Gives back all places or none.
    pub(super) async fn send_places(&self, places: &[PreparedPlace]) -> (CallResults, PlacesOutcome) {
        let all_unsent =
            |error: Option<&StoreError>| places.iter().flat_map(|place| place.refund.unsent(error)).collect();
        // The first one is asked by its own refund.
        let asks = places.iter().skip(1).map(|place| self.send_adjust_call(place.slot, &place.ask));
        for asked in join_all(asks).await {
            match asked {
                Ok(reply) if reply.stays_taken => return (all_unsent(None), PlacesOutcome::StayTaken),
                Ok(_) => {}
                Err(failure) => {
                    let error = not_applied(&failure.error);
                    return (all_unsent(Some(&error)), PlacesOutcome::Failed(error));
                }
            }
        }
        let mut results = CallResults::new();
        for (number, PreparedPlace { slot, refund, .. }) in places.iter().enumerate() {
            let sent = self.send_adjust_call(*slot, refund).await;
            let (before, after) = (&places[..number], &places[number + 1..]);
            let after =
                |error: Option<&StoreError>| after.iter().flat_map(|place| place.refund.unsent(error)).collect();
            match &sent {
                Ok(reply) if reply.stays_taken => {
                    let after: CallResults = after(None);
                    let charges = before.iter().map(|place| self.send_adjust_call(place.slot, &place.charge));
                    results = before
                        .iter()
                        .zip(join_all(charges).await)
                        .flat_map(|(place, charged)| match charged {
                            Ok(_) => place.refund.unsent(None),
                            failed => place.charge.results(failed),
                        })
                        .collect();
                    results.extend(refund.results(sent));
                    results.extend(after);
                    return (results, PlacesOutcome::StayTaken);
                }
                Ok(_) => results.extend(refund.results(sent)),
                Err(failure) => {
                    let error = not_applied(&failure.error);
                    let after: CallResults = after(Some(&error));
                    results.extend(refund.results(sent));
                    results.extend(after);
                    return (results, PlacesOutcome::Failed(error));
                }
            }
        }
        (results, PlacesOutcome::GoneBack)
    }
}
