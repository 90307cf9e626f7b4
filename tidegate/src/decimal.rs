//! Numbers and addresses as text, for what is written on every answer: `fmt` costs several times as much. It writes what
//! `Display` writes, and nothing else.

use std::net::IpAddr;

/// As many digits as the largest number has.
const MOST_DIGITS: usize = 20;

/// `00` to `99`: two digits for one division.
const PAIRS: [[u8; 2]; 100] = pairs();

/// An address as its `Display` writes it.
///
/// ```
/// assert_eq!(tidegate::spi::address_text([203, 0, 113, 9].into()), "203.0.113.9");
/// ```
pub fn address_text(address: IpAddr) -> String {
    let IpAddr::V4(address) = address else { return address.to_string() };
    let mut bytes = [b'.'; "255.255.255.255".len()];
    let mut end = 0;
    for octet in address.octets() {
        for (least, digit) in [(100, octet / 100), (10, octet / 10 % 10), (0, octet % 10)] {
            if octet >= least {
                bytes[end] = b'0' + digit;
                end += 1;
            }
        }
        // A dot follows, but for the last.
        end += 1;
    }
    text(&bytes[..end - 1]).to_owned()
}

/// Appends a number.
pub(crate) fn push(to: &mut String, mut number: u64) {
    let mut digits = [0; MOST_DIGITS];
    let mut start = MOST_DIGITS;
    while number >= 10 {
        start -= 2;
        digits[start..start + 2].copy_from_slice(&PAIRS[(number % 100) as usize]);
        number /= 100;
    }
    // What is left is the first digit, or nothing of a number that has pairs only.
    if number > 0 || start == MOST_DIGITS {
        start -= 1;
        digits[start] = b'0' + number as u8;
    }
    to.push_str(text(&digits[start..]));
}

/// Digits and dots are always a text.
fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}

const fn pairs() -> [[u8; 2]; 100] {
    let mut pairs = [[b'0'; 2]; 100];
    let mut number = 0;
    while number < 100 {
        pairs[number] = [b'0' + (number / 10) as u8, b'0' + (number % 10) as u8];
        number += 1;
    }
    pairs
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    fn pushed(number: u64) -> String {
        let mut pushed = String::from("n=");
        push(&mut pushed, number);
        pushed
    }

    #[test]
    fn the_smallest_and_the_largest_number_have_their_digits() {
        for number in [0, 9, 10, 99, 100, 999, 1_000, 10_000, u64::MAX] {
            assert_eq!(pushed(number), format!("n={number}"));
        }
    }

    proptest! {
        #[test]
        fn a_text_is_the_one_that_display_writes(number: u64, shift in 0..64u32, address: IpAddr, v4: Ipv4Addr) {
            prop_assert_eq!(pushed(number >> shift), format!("n={}", number >> shift));
            prop_assert_eq!(address_text(address), address.to_string());
            prop_assert_eq!(address_text(v4.into()), v4.to_string());
        }
    }
}
