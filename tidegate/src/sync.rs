//! `Mutex` and `RwLock`: the locks of the standard library without poison. `make loom` replaces the mutex with that of `loom`.
//!
//! A panic while a lock is held does not lock everybody else out: no critical section of Tidegate leaves a value that others could not use.

#[cfg(not(loom))]
use std::sync as checked;
use std::sync::{PoisonError, RwLockReadGuard, RwLockWriteGuard};

#[cfg(loom)]
use loom::sync as checked;

pub(crate) use checked::atomic::AtomicU64;

/// A mutex that a panic does not poison.
#[derive(Debug, Default)]
pub struct Mutex<T>(checked::Mutex<T>);

/// What [`Mutex::lock`] returns.
pub type MutexGuard<'m, T> = checked::MutexGuard<'m, T>;

/// A lock for many readers or one writer that a panic does not poison.
#[derive(Debug, Default)]
pub struct RwLock<T>(std::sync::RwLock<T>);

impl<T> Mutex<T> {
    /// A mutex with this value.
    pub fn new(value: T) -> Self {
        Self(checked::Mutex::new(value))
    }

    /// Waits until no other thread has the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value, without a lock: nobody else has it.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> RwLock<T> {
    /// A lock with this value.
    pub const fn new(value: T) -> Self {
        Self(std::sync::RwLock::new(value))
    }

    /// Waits until no other thread writes.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other thread reads or writes.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
