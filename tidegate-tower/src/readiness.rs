//! Readiness: the place that a service keeps for one call, such as a permit or a slot in a buffer. Whoever has to wait gives
//! it back first and asks for it again afterwards, so that nobody else is kept out meanwhile. It waits for nothing else.

use std::future::poll_fn;

use http::Request;
use tower_service::Service;

/// Gives back what `service` keeps for the next call: a clone has to ask for it anew.
pub(crate) fn give_back<T: Clone>(service: &mut T) {
    let clone = service.clone();
    *service = clone;
}

/// Asks for it again; the next call may come once this is done.
pub(crate) async fn regain<T, A>(service: &mut T) -> Result<(), T::Error>
where
    T: Service<Request<A>>,
{
    poll_fn(|context| service.poll_ready(context)).await
}
