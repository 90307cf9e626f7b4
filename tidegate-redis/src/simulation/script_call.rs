//! `ScriptCall`: the arguments and the reply of the scripts that decide plans, as the simulated server reads and writes them.
//! Only plans of one check with a fixed window are simulated.

use crate::scripts::SCRIPTS;

/// The time of the simulated server, which does not advance.
const NOW_MICROS: u64 = 1_800_000_000_000_000;

/// The packed doubles of one limit.
const LIMIT_BYTES: usize = 88;

/// The doubles of a limit before its arguments.
const LIMIT_HEADER_BYTES: usize = 24;

/// A call of a script that decides plans.
pub(super) struct ScriptCall {
    pub(super) plans: Vec<SimulatedPlan>,
    /// Whether the last plan is not answered.
    pub(super) answers_some: bool,
    window_micros: u64,
}

/// A plan of one check with a fixed window.
pub(super) struct SimulatedPlan {
    pub(super) key: Vec<u8>,
    pub(super) cost: u64,
    pub(super) limit: u64,
}

/// How a check was decided.
pub(super) struct DecidedCheck {
    pub(super) admitted: bool,
    /// What was taken before.
    pub(super) before: u64,
}

impl ScriptCall {
    /// Decodes `EVALSHA hash keys key… arguments…`.
    pub(super) fn decode(command: &[Vec<u8>]) -> Self {
        let is_single = command[1] != SCRIPTS.decide_batch().hash().as_bytes()
            && command[1] != SCRIPTS.decide_batch_full().hash().as_bytes();
        let keys: usize = String::from_utf8_lossy(&command[2]).parse().expect("the number of keys");
        let (keys, arguments) = command[3..].split_at(keys);
        if is_single {
            let [cost, _, limit, window_micros] = doubles(&arguments[0]);
            let plans = vec![SimulatedPlan { key: keys[0].clone(), cost, limit }];
            return Self { plans, answers_some: false, window_micros };
        }
        let numbers: Vec<usize> =
            arguments[0].chunks_exact(2).map(|pair| usize::from(u16::from_le_bytes([pair[0], pair[1]]))).collect();
        // Before the plans are three numbers about all of them.
        let (mut plans, mut window_micros, mut rest) = (Vec::new(), 1, numbers.get(3..).unwrap_or_default());
        while let [layout, tail @ ..] = rest {
            // Every plan has a cost of its own, so none is repeated.
            let tail = match layout {
                0 => tail,
                1 => tail.strip_prefix(&[1, 1]).expect("one unit and one check"),
                _ => panic!("neither peeks nor several units are simulated"),
            };
            let [limit, key] = [tail[0], tail[1]];
            rest = &tail[if *layout == 0 { 2 } else { 3 }..];
            let limit = &arguments[1][(limit - 1) * LIMIT_BYTES..][LIMIT_HEADER_BYTES..];
            let [cost, _, limit, window] = doubles(limit);
            window_micros = window;
            plans.push(SimulatedPlan { key: keys[key - 1].clone(), cost, limit });
        }
        Self { plans, answers_some: false, window_micros }
    }

    /// The reply, as of `decide_batch.lua`.
    pub(super) fn reply(&self, decided: Vec<DecidedCheck>) -> Vec<u8> {
        let mut reply = (NOW_MICROS as f64).to_le_bytes().to_vec();
        let answered = decided.len() - usize::from(self.answers_some && !decided.is_empty());
        for DecidedCheck { admitted, before } in decided.into_iter().take(answered) {
            reply.extend_from_slice(if admitted { b";a" } else { b";A" });
            if before > 0 {
                reply.extend_from_slice(format!("{before}{:010}", NOW_MICROS / self.window_micros).as_bytes());
            }
        }
        bulk_string(&reply)
    }
}

fn doubles<const N: usize>(bytes: &[u8]) -> [u64; N] {
    std::array::from_fn(|index| {
        f64::from_le_bytes(bytes[8 * index..8 * index + 8].try_into().expect("eight bytes")) as u64
    })
}

pub(super) fn bulk_string(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// Takes the next complete command from the front of `bytes`.
pub(super) fn take_command(bytes: &mut Vec<u8>) -> Option<Vec<Vec<u8>>> {
    let mut at = 0;
    let count = take_number(bytes, &mut at)?;
    let mut arguments = Vec::with_capacity(count);
    for _ in 0..count {
        let length = take_number(bytes, &mut at)?;
        arguments.push(bytes.get(at..at + length)?.to_vec());
        at += length + 2;
    }
    (at <= bytes.len()).then(|| drop(bytes.drain(..at)))?;
    Some(arguments)
}

/// Reads the number of a line such as `*3` or `$11`.
fn take_number(bytes: &[u8], at: &mut usize) -> Option<usize> {
    let end = *at + bytes.get(*at..)?.windows(2).position(|pair| pair == b"\r\n")?;
    let number = std::str::from_utf8(&bytes[*at + 1..end]).ok()?.parse().ok()?;
    *at = end + 2;
    Some(number)
}
