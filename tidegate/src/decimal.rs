//! Numbers and addresses as text, for what is written on every answer: `fmt` costs several times as much. It writes what
//! `Display` writes, and nothing else.

use std::net::IpAddr;

/// As many digits as the largest number has.
const MOST_DIGITS: usize = 20;

/// An address as its `Display` writes it.
///
/// ```
/// assert_eq!(tidegate::address_text([203, 0, 113, 9].into()), "203.0.113.9");
/// ```
pub fn address_text(address: IpAddr) -> String {
    let IpAddr::V4(address) = address else { return address.to_string() };
    let mut text = String::with_capacity("255.255.255.255".len());
    for (place, octet) in address.octets().into_iter().enumerate() {
        if place > 0 {
            text.push('.');
        }
        push(&mut text, octet.into());
    }
    text
}

/// Appends a number.
pub(crate) fn push(text: &mut String, mut number: u64) {
    let mut digits = [0; MOST_DIGITS];
    let mut start = MOST_DIGITS;
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    // Digits are always a text.
    text.push_str(std::str::from_utf8(&digits[start..]).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pushed(number: u64) -> String {
        let mut text = String::from("n=");
        push(&mut text, number);
        text
    }

    #[test]
    fn the_smallest_and_the_largest_number_have_their_digits() {
        for number in [0, 9, 10, 99, 100, u64::MAX] {
            assert_eq!(pushed(number), format!("n={number}"));
        }
    }

    proptest! {
        #[test]
        fn a_text_is_the_one_that_everybody_writes(number: u64, shift in 0..64u32, address: IpAddr) {
            prop_assert_eq!(pushed(number >> shift), format!("n={}", number >> shift));
            prop_assert_eq!(address_text(address), address.to_string());
        }
    }
}
