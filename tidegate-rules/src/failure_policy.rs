//! `FailurePolicy`: what happens to the requests of a rule while the store fails, the same to all of them or by route. It decides
//! nothing: it says which of the library's policies holds.

use smol_str::SmolStr;
use tidegate::OnFailure;

use crate::request_view::RequestView;
use crate::route_table::{RouteEntry, RouteTable};

/// What happens while the store fails.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FailurePolicy {
    pub(crate) routes: RouteTable<OnFailure>,
    /// To requests that no route fits.
    pub(crate) otherwise: OnFailure,
}

impl FailurePolicy {
    /// The same to all requests.
    pub(crate) fn always(policy: OnFailure) -> Self {
        Self { routes: RouteTable::default(), otherwise: policy }
    }

    /// What happens to a request, where that is not what happens to all [others](Self::otherwise).
    pub(crate) fn of(&self, view: &RequestView<'_, '_>) -> Option<OnFailure> {
        self.routes.of(view)
    }

    /// Every policy that it may come to, the last one for requests that no route fits.
    pub(crate) fn each(&self) -> impl Iterator<Item = (Option<&RouteEntry<OnFailure>>, OnFailure)> {
        let routes = self.routes.routes().iter().map(|route| (Some(route), route.value));
        routes.chain([(None, self.otherwise)])
    }

    /// The attributes that it reads.
    pub(crate) fn reads(&self, names: &mut Vec<SmolStr>) {
        self.routes.reads(names);
    }
}
