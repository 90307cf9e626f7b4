//! Decisions without the store: while it fails, while the instance is overloaded, by denials that it knows, and for subjects that a
//! full store has no room for; and waiting for slots.

mod bounds;
mod flood;
mod known_denials;
mod leases;
mod overload;
mod penalties;
mod policies;
mod reservations;
mod shadow;
mod stateless_checks;
pub(crate) mod store;
mod waiting;
