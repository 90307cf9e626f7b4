//! Releases and reacquires the readiness of a service: what `poll_ready` reserved for the next call, such as a permit or a
//! slot in a buffer. A request that has to wait releases it, so that other requests can use it meanwhile.

use std::future::poll_fn;

use http::Request;
use tower_service::Service;

/// Releases what `service` has reserved for the next call: a clone has reserved nothing.
pub(crate) fn release<T: Clone>(service: &mut T) {
    let clone = service.clone();
    *service = clone;
}

/// Waits until `service` is ready again.
pub(crate) async fn reacquire<T, A>(service: &mut T) -> Result<(), T::Error>
where
    T: Service<Request<A>>,
{
    poll_fn(|context| service.poll_ready(context)).await
}
