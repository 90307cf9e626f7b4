//! `Few`: a list that is nearly always of one. Most plans have a single check, and one must not cost an allocation.

use std::ops::{Deref, DerefMut};

/// One value in place, or any other number of them on the heap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Few<T> {
    /// Exactly one.
    One(T),
    /// None, or more than one.
    Many(Vec<T>),
}

impl<T> Few<T> {
    /// Appends a value.
    #[inline]
    pub fn push(&mut self, value: T) {
        match self {
            Self::Many(many) if many.is_empty() => *self = Self::One(value),
            Self::Many(many) => many.push(value),
            Self::One(_) => {
                let Self::One(first) = std::mem::take(self) else { return };
                *self = Self::Many(vec![first, value]);
            }
        }
    }

    /// Hands out every value with its place.
    #[inline]
    pub fn into_each(self, mut each: impl FnMut(usize, T)) {
        match self {
            Self::One(one) => each(0, one),
            Self::Many(many) => many.into_iter().enumerate().for_each(|(index, value)| each(index, value)),
        }
    }
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl<T> FromIterator<T> for Few<T> {
    #[inline]
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        let mut values = values.into_iter();
        let Some(first) = values.next() else { return Self::default() };
        match values.next() {
            None => Self::One(first),
            Some(second) => Self::Many([first, second].into_iter().chain(values).collect()),
        }
    }
}

impl<'f, T> IntoIterator for &'f Few<T> {
    type Item = &'f T;
    type IntoIter = std::slice::Iter<'f, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

impl<T> DerefMut for Few<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::One(one) => std::slice::from_mut(one),
            Self::Many(many) => many,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Few;

    #[test]
    fn it_is_a_list_of_any_length() {
        for length in 0..4 {
            let collected: Few<usize> = (0..length).collect();
            let mut pushed = Few::default();
            (0..length).for_each(|value| pushed.push(value));
            assert_eq!(collected, pushed);
            assert_eq!(*collected, (0..length).collect::<Vec<_>>());
            assert_eq!(matches!(collected, Few::One(_)), length == 1);
        }
    }
}
