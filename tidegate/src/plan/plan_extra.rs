//! `PlanExtra`: what few plans have beside their checks, boxed so that the others stay small.

use smallvec::SmallVec;

use super::{LeaseOwner, Plan, PlanMode, ReservationTerms};
use crate::RequestProblem;
use crate::http::ErrorFormat;

/// What few plans have beside their checks. No plan has two of these.
#[derive(Clone, Debug)]
pub(super) enum PlanExtra {
    /// Why the request cannot be judged, and the format of the response. Such a plan has no checks.
    Problem(RequestProblem, Option<ErrorFormat>),
    /// The owner of the slots that the plan takes from concurrency limits.
    Owner(LeaseOwner),
    /// The plan is a reservation.
    Reservation(ReservationTerms),
}

impl Plan<'_> {
    /// The plan of a request that cannot be judged. It has no checks, and is denied without a call to the store.
    pub fn refused(problem: RequestProblem) -> Self {
        Self::refused_in(None, problem)
    }

    /// The same with the format of the response.
    pub(crate) fn refused_in(format: Option<ErrorFormat>, problem: RequestProblem) -> Self {
        Self { extra: Some(Box::new(PlanExtra::Problem(problem, format))), ..Self::from_distinct(SmallVec::new()) }
    }

    /// The format of a response that names no rule: the last one of the rules that apply. `None` if they say nothing about it.
    pub fn error_format(&self) -> Option<ErrorFormat> {
        match self.extra.as_deref() {
            Some(PlanExtra::Problem(_, format)) => *format,
            _ => self.enforced().map(|check| check.gate().rule().error_format).max().flatten(),
        }
    }

    /// Chooses an owner, unless there is one.
    #[cold]
    pub(super) fn require_owner(&mut self) {
        if self.extra.is_none() {
            self.extra = Some(Box::new(PlanExtra::Owner(LeaseOwner::random())));
        }
    }

    /// Sets the owner of the slots that the plan takes from concurrency limits, in place of a random one. A plan with the same owner
    /// as an earlier one takes the same slots again, and no others. Without such a limit, it does nothing.
    pub fn with_lease_owner(mut self, owner: LeaseOwner) -> Self {
        if let Some(PlanExtra::Owner(own)) = self.extra.as_deref_mut() {
            *own = owner;
        }
        self
    }

    /// Chooses another owner if the plan takes slots, for another attempt: a release of the earlier ones that is under way must not
    /// release the new ones.
    pub(crate) fn with_new_lease_owner(self) -> Self {
        if self.lease_owner().is_some() { self.with_lease_owner(LeaseOwner::random()) } else { self }
    }

    /// Makes the plan a reservation: what it admits is held until it is committed or released. Always all or nothing, and of one unit.
    pub fn with_reservation(mut self, terms: ReservationTerms) -> Self {
        if self.problem().is_none() {
            self.extra = Some(Box::new(PlanExtra::Reservation(terms)));
            (self.mode, self.max_units) = (PlanMode::AllOrNothing, 1);
        }
        self
    }

    /// Whose reservation the plan is, if it is one.
    #[inline(always)]
    pub fn reservation(&self) -> Option<&ReservationTerms> {
        match self.extra.as_deref() {
            Some(PlanExtra::Reservation(terms)) => Some(terms),
            _ => None,
        }
    }

    /// Why the request cannot be judged, if it cannot. Such a plan has no checks and is denied.
    pub fn problem(&self) -> Option<&RequestProblem> {
        match self.extra.as_deref() {
            Some(PlanExtra::Problem(problem, _)) => Some(problem),
            _ => None,
        }
    }

    /// The owner of the slots and holds that the plan takes. `None` if none of its limits is a concurrency limit, and it is no
    /// reservation.
    #[inline(always)]
    pub fn lease_owner(&self) -> Option<LeaseOwner> {
        match self.extra.as_deref() {
            Some(PlanExtra::Owner(owner)) => Some(*owner),
            Some(PlanExtra::Reservation(terms)) => Some(terms.owner()),
            _ => None,
        }
    }
}
