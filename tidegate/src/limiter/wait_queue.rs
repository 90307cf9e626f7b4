//! `WaitQueue`: the callers of [`Limiter::acquire`] that wait for the same limits, in the order of arrival.
//!
//! [`Limiter::acquire`]: crate::Limiter::acquire

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::sync::Mutex;

/// One queue for each set of keys with waiting callers.
#[derive(Debug, Default)]
pub(crate) struct WaitQueue(Mutex<Queues>);

#[derive(Debug, Default)]
struct Queues {
    waiting: HashMap<u128, VecDeque<Waiter>>,
    arrived: u64,
}

#[derive(Debug)]
struct Waiter {
    number: u64,
    waker: Option<Waker>,
}

/// A place in a queue: a future that completes at its head. Dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct QueueTicket<'t> {
    wait_queue: &'t WaitQueue,
    queue: u128,
    number: u64,
}

impl WaitQueue {
    /// A number for a caller that arrives.
    pub(crate) fn next_number(&self) -> u64 {
        let mut queues = self.0.lock();
        queues.arrived += 1;
        queues.arrived
    }

    /// Joins a queue, behind those who arrived before.
    pub(crate) fn enter(&self, queue: u128, number: u64) -> QueueTicket<'_> {
        let mut queues = self.0.lock();
        let waiters = queues.waiting.entry(queue).or_default();
        let place = waiters.iter().rposition(|waiter| waiter.number < number).map_or(0, |before| before + 1);
        waiters.insert(place, Waiter { number, waker: None });
        drop(queues);
        QueueTicket { wait_queue: self, queue, number }
    }
}

impl Future for &mut QueueTicket<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut queues = self.wait_queue.0.lock();
        let Some(queue) = queues.waiting.get_mut(&self.queue) else {
            return Poll::Ready(());
        };
        if queue.front().is_none_or(|head| head.number == self.number) {
            return Poll::Ready(());
        }
        if let Some(waiter) = queue.iter_mut().find(|waiter| waiter.number == self.number) {
            waiter.waker = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for QueueTicket<'_> {
    fn drop(&mut self) {
        let mut queues = self.wait_queue.0.lock();
        let Some(queue) = queues.waiting.get_mut(&self.queue) else {
            return;
        };
        queue.retain(|waiter| waiter.number != self.number);
        let next = queue.front_mut().and_then(|head| head.waker.take());
        if queue.is_empty() {
            queues.waiting.remove(&self.queue);
        }
        drop(queues);
        if let Some(next) = next {
            next.wake();
        }
    }
}
