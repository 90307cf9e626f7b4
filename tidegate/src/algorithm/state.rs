//! `State`: what a store keeps for one key, whatever the kind of limit.

use super::{Moment, fixed_window, sliding_log, sliding_window};
use crate::{Limit, Timestamp};

/// The state of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Token bucket and leaky bucket.
    Moment(Moment),
    /// Fixed window.
    Window(fixed_window::State),
    /// Sliding log (boxed: a bucket's slot in a table stays small).
    Log(Box<sliding_log::State>),
    /// Sliding window (boxed likewise).
    Slices(Box<sliding_window::State>),
}

/// What to write: for all but the log, the new state itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Token bucket and leaky bucket.
    Moment(Moment),
    /// Fixed window.
    Window(fixed_window::State),
    /// Sliding log.
    Log(sliding_log::Edit),
    /// Sliding window (boxed, as the state is).
    Slices(Box<sliding_window::State>),
}

/// A state as an outcome sees it: for all but the log, the state itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View<'s> {
    /// Nothing was there.
    Fresh,
    /// Token bucket and leaky bucket.
    Moment(Moment),
    /// Fixed window.
    Window(fixed_window::State),
    /// Sliding log.
    Log(sliding_log::Summary),
    /// Sliding window.
    Slices(&'s sliding_window::State),
}

impl State {
    /// The state that `change` makes of nothing.
    #[inline(always)]
    pub fn new(change: Change) -> Self {
        match change {
            Change::Moment(moment) => Self::Moment(moment),
            Change::Window(window) => Self::Window(window),
            Change::Slices(slices) => Self::Slices(slices),
            Change::Log(edit) => {
                let mut log = sliding_log::State::default();
                log.commit(&edit);
                Self::Log(Box::new(log))
            }
        }
    }

    /// Carries out `change`.
    #[inline(always)]
    pub fn commit(&mut self, change: Change) {
        match (change, self) {
            (Change::Log(edit), Self::Log(log)) => log.commit(&edit),
            (change, state) => *state = Self::new(change),
        }
    }

    /// What an outcome needs of it for a request of `cost` units.
    #[inline(always)]
    pub fn view<'s>(state: Option<&'s Self>, limit: &Limit, now: Timestamp, cost: u64) -> View<'s> {
        match (state, limit) {
            (Some(Self::Moment(moment)), _) => View::Moment(*moment),
            (Some(Self::Window(window)), _) => View::Window(*window),
            (Some(Self::Log(log)), Limit::SlidingLog(limit)) => View::Log(limit.summary(Some(log), now, cost)),
            (Some(Self::Slices(slices)), _) => View::Slices(slices),
            _ => View::Fresh,
        }
    }

    #[inline(always)]
    pub(super) fn moment(&self) -> Option<Moment> {
        if let Self::Moment(moment) = self { Some(*moment) } else { None }
    }

    pub(super) fn window(&self) -> Option<fixed_window::State> {
        if let Self::Window(window) = self { Some(*window) } else { None }
    }

    pub(super) fn log(&self) -> Option<&sliding_log::State> {
        if let Self::Log(log) = self { Some(log) } else { None }
    }

    pub(super) fn slices(&self) -> Option<&sliding_window::State> {
        if let Self::Slices(slices) = self { Some(slices) } else { None }
    }
}

impl<'s> View<'s> {
    #[inline(always)]
    pub(super) fn moment(&self) -> Option<Moment> {
        if let Self::Moment(moment) = self { Some(*moment) } else { None }
    }

    pub(super) fn window(&self) -> Option<fixed_window::State> {
        if let Self::Window(window) = self { Some(*window) } else { None }
    }

    pub(super) fn log(&self) -> sliding_log::Summary {
        if let Self::Log(summary) = self { *summary } else { sliding_log::Summary::default() }
    }

    pub(super) fn slices(&self) -> Option<&'s sliding_window::State> {
        if let Self::Slices(slices) = self { Some(*slices) } else { None }
    }
}
