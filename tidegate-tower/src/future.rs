//! `LimitFuture`: a request on its way through the limit and the inner service.
//!
//! It is a boxed async block. The steps of a request borrow from one another (the question from its parts, the store's
//! future from the limiter), which a state machine written by hand cannot express without `unsafe`; and the future of a
//! store has no name, so it would be boxed in any case. One allocation for each request buys code that reads from top to
//! bottom.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::Response;

use crate::ResponseBody;

/// The future of [`LimitService`](crate::LimitService) and [`BufferBodyService`](crate::BufferBodyService).
///
/// Dropping it while its request is held gives the place in the queue back.
pub struct LimitFuture<B, E>(Pin<Box<Way<B, E>>>);

type Way<B, E> = dyn Future<Output = Result<Response<ResponseBody<B>>, E>> + Send;

impl<B, E> LimitFuture<B, E> {
    pub(crate) fn new(way: impl Future<Output = Result<Response<ResponseBody<B>>, E>> + Send + 'static) -> Self {
        Self(Box::pin(way))
    }
}

impl<B, E> Future for LimitFuture<B, E> {
    type Output = Result<Response<ResponseBody<B>>, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(context)
    }
}

impl<B, E> fmt::Debug for LimitFuture<B, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitFuture").finish_non_exhaustive()
    }
}
