//! The numbers that the scripts unpack, for every kind of limit: as a decision sends them, and as an adjustment does.

use std::time::Duration;

use tidegate::limits::{Penalty, Period, Periods, Window};
use tidegate::spi::algorithm::{FractionalMicros, HoldOp, Op, TakePosition};
use tidegate::spi::{Adjustment, Check, Gate, LeaseOwner, Plan, Subject};
use tidegate::{Limit, Rate, Timestamp};

use super::PackedAdjustment;
use crate::cardinality::OverflowRoute;
use crate::packed_plan::PackedPlan;
use crate::period_clock::PackTime;

const NOW: u64 = 1_800_000_000_000_000;
const MINUTE: Duration = Duration::from_secs(60);

fn doubles(bytes: &[u8]) -> String {
    let numbers = bytes.chunks_exact(8).map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap()));
    numbers.map(|number| format!("{number}")).collect::<Vec<_>>().join(" ")
}

fn adjusted(check: &Check<'_>, op: Op) -> String {
    let time = PackTime::At(Timestamp::from_micros(NOW));
    doubles(&PackedAdjustment::new("tg", &Adjustment::new(check, op), OverflowRoute::default(), &time).numbers)
}

/// For each limit the numbers of a take of 2 units, of a charge of 3, and of a refund of 2.
fn packed(limit: Limit, position: TakePosition) -> [String; 3] {
    let gate = Gate::for_rule("r", limit);
    let check = Check::new(&gate, Subject::from_hash(7), 2);
    let plan = Plan::new([check]).unwrap().with_max_delay(Duration::from_secs(5));
    let plan = plan.with_lease_owner(LeaseOwner::from_number(77).unwrap());
    let packed = PackedPlan::pack("tg", &plan, &[], &PackTime::At(Timestamp::from_micros(NOW)));
    [
        doubles(packed.part(&packed.checks[0].limit)),
        adjusted(&check, Op::Charge { cost: 3, position }),
        adjusted(&check, Op::Refund { cost: 2, position }),
    ]
}

#[test]
fn every_limit_is_packed_as_its_script_unpacks_it() {
    let moment = |micros| FractionalMicros { micros: NOW + micros, part: 5 };
    let bucket = TakePosition::from_bucket(moment(1), moment(2), 3);
    let (slot, index) = (TakePosition::from_slot(moment(1)), TakePosition::from_index(9));
    let rate = Rate::per_second(7).unwrap();
    let penalty = Penalty::new(3, MINUTE, 2, 60 * MINUTE).unwrap();
    let quota = Limit::quota_with_grace(10, 2, Periods::utc(Period::Month)).unwrap();
    let limits = [
        (
            Limit::token_bucket(10, rate).unwrap(),
            bucket,
            [
                "1 0 inf 285714 2 7 1428571 3 9223372036854776000000000 0 0",
                "1 3 0 inf 428571 3 7 1428571 3 9223372036854776000000000 0 0 0 0 0",
                "1 4 0 inf 285714 2 7 1428571 3 9223372036854776000000000 1800000000000001 5 1800000000000002 5 3",
            ],
        ),
        (
            Limit::leaky_bucket(rate, 9).unwrap(),
            slot,
            [
                "2 0 inf 285714 2 7 1428571 3 5000000 0 0",
                "2 3 0 inf 428571 3 7 1428571 3 inf 0 0",
                "2 4 0 inf 285714 2 7 1428571 3 inf 1800000000000001 5",
            ],
        ),
        (
            Limit::fixed_window(10, MINUTE).unwrap(),
            index,
            ["3 0 inf 2 0 10 60000000 0 0 0 0", "3 3 0 inf 3 0 10 60000000", "3 4 0 inf 2 9 10 60000000"],
        ),
        (
            Limit::fixed_window(10, Window::YEAR).unwrap(),
            index,
            ["3 0 inf 2 0 10 -12 0 0 0 0", "3 3 0 inf 3 0 10 -12", "3 4 0 inf 2 9 10 -12"],
        ),
        (
            Limit::sliding_log(10, MINUTE).unwrap(),
            index,
            ["4 0 inf 2 0 10 60000000 0 0 0 0", "4 3 0 inf 3 0 10 60000000", "4 4 0 inf 2 9 10 60000000"],
        ),
        (
            Limit::sliding_window(10, MINUTE, 6).unwrap(),
            index,
            ["5 0 inf 2 0 10 10000000 6 0 0 0", "5 3 0 inf 3 0 10 10000000 6", "5 4 0 inf 2 9 10 10000000 6"],
        ),
        (
            Limit::concurrency(10, MINUTE).unwrap(),
            index,
            ["6 0 inf 2 77 10 60000000 0 0 0 0", "6 3 0 inf 3 0 10 60000000", "6 4 0 inf 2 9 10 60000000"],
        ),
        (
            Limit::Penalty(penalty),
            index,
            [
                "7 0 inf 3 60000000 2 3600000000 0 0 0 0",
                "7 3 0 inf 3 60000000 2 3600000000",
                "7 4 0 inf 3 60000000 2 3600000000",
            ],
        ),
        (
            quota,
            index,
            [
                "8 0 inf 2 0 12 398525184 1796083200000000 1798761600000000 1801440000000000 1803859200000000",
                "8 3 0 inf 3 9 12 398525184 1796083200000000 1798761600000000 1801440000000000 1803859200000000",
                "8 4 0 inf 2 9 12 398525184 1796083200000000 1798761600000000 1801440000000000 1803859200000000",
            ],
        ),
    ];
    let mut wrong = Vec::new();
    for (limit, position, expected) in limits {
        let found = packed(limit, position);
        if found != expected {
            wrong.push(format!("{found:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn renewals_and_ends_of_holds_are_packed_as_their_script_unpacks_them() {
    let gate = |limit| Gate::for_rule("r", limit);
    let slots = gate(Limit::concurrency(10, MINUTE).unwrap());
    let quota = gate(Limit::quota(10, Periods::utc(Period::Day)).unwrap());
    let bucket = gate(Limit::token_bucket(10, Rate::per_second(7).unwrap()).unwrap());
    let owner = LeaseOwner::from_number(77).unwrap();
    let hold = TakePosition::from_hold(owner, 300_000_000, true).in_period(5);
    let check = |gate| Check::new(gate, Subject::from_hash(7), 2);
    let renew = Op::Renew { position: TakePosition::from_owner(owner), weight: 4 };
    let commit = Op::Hold(HoldOp::Commit { cost: 6, position: hold });
    let shared = Op::Hold(HoldOp::Commit { cost: 6, position: hold.in_overflow_bucket(3) });
    let release = Op::Hold(HoldOp::Release { position: hold });
    let found = [
        adjusted(&check(&slots), renew),
        adjusted(&check(&quota), commit),
        adjusted(&check(&quota), shared),
        adjusted(&check(&bucket), commit),
        adjusted(&check(&bucket), release),
    ];
    assert_eq!(
        found,
        [
            "6 5 0 inf 4 77 10 60000000",
            "8 7 0 inf 77 6 1 6 0 10 12124078128 1799884800000000 1799971200000000 1800057600000000 1800144000000000",
            "8 7 0 inf 77 6 3 6 0 10 12124078128 1799884800000000 1799971200000000 1800057600000000 1800144000000000",
            "1 7 0 inf 77 6 1 857142 6 7 1428571 3 9223372036854776000000000 0 0 0 0 0",
            "1 9 0 inf 77 0 1 0 0 7 1428571 3 9223372036854776000000000 0 0 0 0 0",
        ]
    );
}
