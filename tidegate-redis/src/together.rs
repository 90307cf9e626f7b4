//! Several futures at once, in one task: calls to several servers wait for each other only once.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// What each of `futures` gives, in their order. There are few of them, so each is looked at whenever one wakes.
pub(crate) async fn together<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut ready: Vec<Option<F::Output>> = running.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (future, ready) in running.iter_mut().zip(&mut ready) {
            if ready.is_none()
                && let Poll::Ready(output) = future.as_mut().poll(context)
            {
                *ready = Some(output);
            }
        }
        if ready.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    ready.into_iter().flatten().collect()
}
