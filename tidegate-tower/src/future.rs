//! `ResponseFuture`: the response future of the services of this crate.
//!
//! It is a boxed async block. The steps of a request borrow from one another (the plan from the request's parts, the store's
//! future from the limiter), which a hand-written state machine cannot express without `unsafe`; and the future of a store
//! has no name, so it would be boxed in any case. It costs one allocation for each request.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::Response;

use crate::ResponseBody;

/// The future of [`LimitService`](crate::LimitService) and [`BufferBodyService`](crate::BufferBodyService).
///
/// Dropping it while its request waits in the queue of a leaky bucket refunds the request, unless others wait behind it.
pub struct ResponseFuture<B, E>(Pin<Box<ResponseSteps<B, E>>>);

type ResponseSteps<B, E> = dyn Future<Output = Result<Response<ResponseBody<B>>, E>> + Send;

impl<B, E> ResponseFuture<B, E> {
    pub(crate) fn new(future: impl Future<Output = Result<Response<ResponseBody<B>>, E>> + Send + 'static) -> Self {
        Self(Box::pin(future))
    }
}

impl<B, E> Future for ResponseFuture<B, E> {
    type Output = Result<Response<ResponseBody<B>>, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(context)
    }
}

impl<B, E> fmt::Debug for ResponseFuture<B, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
