//! The key grammar: different keys have different names, and no input of a client moves a key to another slot.

use std::time::Duration;

use proptest::prelude::*;
use tidegate::spi::{Key, KeyStem, Subject};
use tidegate::{Limit, Rate};

/// The parts of a key.
#[derive(Clone, Debug, PartialEq)]
struct Parts {
    budget: bool,
    owner: String,
    limit: Limit,
    name: String,
    partition: u16,
    subject: u128,
    /// The number of an overflow bucket, in place of the subject.
    overflow: Option<u32>,
}

impl Parts {
    fn name(&self) -> Vec<u8> {
        let of = if self.budget { KeyStem::for_budget } else { KeyStem::for_rule };
        let stem = of(&self.owner, &self.limit, &self.name);
        let mut name = Vec::new();
        let key = Key::new(&stem, self.partition, Subject::from_hash(self.subject));
        self.overflow.map_or(key, |beside| key.overflow(beside)).write_name("tg", &mut name);
        name
    }
}

/// A small alphabet of mostly special characters, so that collisions are likely.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![3 => "[a1:.$%{}x]{0,4}", 1 => any::<String>()]
}

fn limit() -> impl Strategy<Value = Limit> {
    let window = prop::sample::select(vec![1u64, 1_000, 60_000_000, 61_000_000, 3_600_000_000, 86_400_000_000]);
    let window = window.prop_map(Duration::from_micros);
    prop_oneof![
        Just(Limit::token_bucket(1, Rate::per_second(1).unwrap()).unwrap()),
        Just(Limit::leaky_bucket(Rate::per_second(1).unwrap(), 1).unwrap()),
        window.clone().prop_map(|window| Limit::fixed_window(1, window).unwrap()),
        window.clone().prop_map(|window| Limit::sliding_log(1, window).unwrap()),
        (window, 1..13u64)
            .prop_map(|(window, slices)| Limit::sliding_window(1, window * slices as u32, slices).unwrap()),
    ]
}

fn parts() -> impl Strategy<Value = Parts> {
    let subject = prop_oneof![0..4u128, any::<u128>()];
    let overflow = prop_oneof![3 => Just(None), 1 => (0..4u32).prop_map(Some)];
    (any::<bool>(), text(), limit(), text(), 0..4u16, subject, overflow).prop_map(
        |(budget, owner, limit, name, partition, subject, overflow)| {
            // The name of an overflow bucket does not contain the subject.
            let subject = if overflow.is_some() { 0 } else { subject };
            Parts { budget, owner, limit, name, partition, subject, overflow }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(20_000) })]

    #[test]
    fn different_keys_have_different_names(one in parts(), other in parts()) {
        prop_assert_eq!(one == other, one.name() == other.name());
    }

    /// Regression: braces in user input moved keys to other slots.
    #[test]
    fn only_the_partition_is_in_braces(parts in parts()) {
        let name = parts.name();
        let open = name.iter().position(|byte| *byte == b'{');
        let close = name.iter().position(|byte| *byte == b'}');
        prop_assert_eq!((open, close), (Some(3), Some(6)));
    }

    /// A limit with changed amounts keeps its state.
    #[test]
    fn the_name_of_a_key_does_not_contain_amounts(one in 1..1000u64, other in 1..1000u64, subject in any::<u128>()) {
        let name = |amount| {
            let limit = Limit::fixed_window(amount, Duration::from_secs(1)).unwrap();
            Parts { budget: false, owner: "r".into(), limit, name: String::new(), partition: 0, subject, overflow: None }.name()
        };
        prop_assert_eq!(name(one), name(other));
    }
}

/// Parses names with an independent implementation of the grammar.
#[test]
fn arbitrary_rule_names_can_be_parsed_from_a_key() {
    bolero::check!().with_type::<(bool, String, String, u64, u128, Option<u32>)>().for_each(
        |(budget, owner, limit, window, subject, overflow)| {
            let window = Duration::from_micros(window % 1_000_000_000_000 + 1);
            let kind = Limit::fixed_window(1, window).unwrap();
            let parts = Parts {
                budget: *budget,
                owner: owner.clone(),
                limit: kind,
                name: limit.clone(),
                partition: 7,
                subject: *subject,
                overflow: *overflow,
            };
            let name = parts.name();
            let (front, tail) = name.split_at(name.len() - 16);
            assert_eq!(tail, overflow.map_or(*subject, u128::from).to_be_bytes());
            let front = std::str::from_utf8(front).unwrap();
            let front = if overflow.is_some() { front.strip_suffix('+').unwrap() } else { front };
            let (head, shape) = front.strip_prefix("tg1{07}").unwrap().split_once(':').unwrap();
            let (shape, name) = shape.split_once('.').unwrap_or((shape, ""));
            assert!(shape.starts_with('f') && shape[1..].starts_with(|digit: char| digit.is_ascii_digit()));
            let head = if *budget { head.strip_prefix('$').unwrap() } else { head };
            assert_eq!((unescaped(head), unescaped(name)), (owner.clone().into_bytes(), limit.clone().into_bytes()));
        },
    );
}

fn unescaped(text: &str) -> Vec<u8> {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).unwrap());
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    bytes
}
