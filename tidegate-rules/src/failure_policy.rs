//! `FailurePolicy`: which [`OnFailure`] applies to a request of a rule while the store fails; one for all requests, or by
//! route.

use smol_str::SmolStr;
use tidegate::OnFailure;

use crate::request_view::RequestView;
use crate::route_table::{RouteEntry, RouteTable};

/// The failure policies of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailurePolicy {
    pub routes: RouteTable<OnFailure>,
    /// For requests that no route matches.
    pub otherwise: OnFailure,
}

impl FailurePolicy {
    /// One policy for all requests.
    pub(crate) fn always(policy: OnFailure) -> Self {
        Self { routes: RouteTable::default(), otherwise: policy }
    }

    /// The policy of the first route that matches a request; `None` if [`otherwise`](Self::otherwise) applies.
    pub fn find(&self, view: &RequestView<'_, '_>) -> Option<OnFailure> {
        self.routes.find(view)
    }

    /// Every policy with its route; the last one is for requests that no route matches.
    pub fn each(&self) -> impl Iterator<Item = (Option<&RouteEntry<OnFailure>>, OnFailure)> {
        let routes = self.routes.routes().iter().map(|route| (Some(route), route.value));
        routes.chain([(None, self.otherwise)])
    }

    /// Appends the attributes that the policies read.
    pub fn reads(&self, names: &mut Vec<SmolStr>) {
        self.routes.reads(names);
    }
}
