//! `ReadJson`: reads some parts of a JSON value, and keeps nothing of the others. A part of another type than expected counts as absent.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// What is read of a JSON value.
pub(super) trait ReadJson: Default {
    /// Reads a value without parts.
    fn read_scalar(&mut self, _: Scalar<'_>) {}

    /// Reads a list.
    fn read_items<'de, A: SeqAccess<'de>>(&mut self, mut items: A) -> Result<(), A::Error> {
        self.read_scalar(Scalar::Other);
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    /// Reads an object. Each name may come several times.
    fn read_members<'de, A: MapAccess<'de>>(&mut self, mut members: A) -> Result<(), A::Error> {
        self.read_scalar(Scalar::Other);
        while members.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(())
    }
}

/// A JSON value without parts.
pub(super) enum Scalar<'t> {
    Null,
    Integer(u64),
    Text(&'t str),
    /// A truth value, another number, or a list or object that is not read.
    Other,
}

/// A value that was read from JSON.
pub(super) struct Lenient<T>(pub(super) T);

/// The name of a member.
pub(super) struct MemberName<'de>(pub(super) Cow<'de, str>);

struct LenientVisitor<T>(PhantomData<T>);

struct NameVisitor;

impl<T: ReadJson> LenientVisitor<T> {
    fn scalar(scalar: Scalar<'_>) -> T {
        let mut value = T::default();
        value.read_scalar(scalar);
        value
    }
}

impl<'de, T: ReadJson> Deserialize<'de> for Lenient<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LenientVisitor(PhantomData)).map(Self)
    }
}

impl<'de, T: ReadJson> Visitor<'de> for LenientVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_unit<E>(self) -> Result<T, E> {
        Ok(Self::scalar(Scalar::Null))
    }
    fn visit_u64<E>(self, number: u64) -> Result<T, E> {
        Ok(Self::scalar(Scalar::Integer(number)))
    }
    fn visit_str<E>(self, text: &str) -> Result<T, E> {
        Ok(Self::scalar(Scalar::Text(text)))
    }
    fn visit_bool<E>(self, _: bool) -> Result<T, E> {
        Ok(Self::scalar(Scalar::Other))
    }
    fn visit_i64<E>(self, _: i64) -> Result<T, E> {
        Ok(Self::scalar(Scalar::Other))
    }
    fn visit_f64<E>(self, _: f64) -> Result<T, E> {
        Ok(Self::scalar(Scalar::Other))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<T, A::Error> {
        let mut value = T::default();
        value.read_items(items).map(|()| value)
    }
    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<T, A::Error> {
        let mut value = T::default();
        value.read_members(members).map(|()| value)
    }
}

impl<'de> Deserialize<'de> for MemberName<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(NameVisitor)
    }
}

impl<'de> Visitor<'de> for NameVisitor {
    type Value = MemberName<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }
    fn visit_borrowed_str<E>(self, name: &'de str) -> Result<MemberName<'de>, E> {
        Ok(MemberName(Cow::Borrowed(name)))
    }
    fn visit_str<E>(self, name: &str) -> Result<MemberName<'de>, E> {
        Ok(MemberName(Cow::Owned(name.to_owned())))
    }
}
