//! The messages of Envoy's Rate Limit Service, as far as the service uses them.
//!
//! Declared by hand, since the crate with all of Envoy's messages takes 28 seconds to compile for these few. Names and field numbers
//! are those of Envoy's API: `envoy/service/ratelimit/v3/rls.proto`, `envoy/extensions/common/ratelimit/v3/ratelimit.proto`,
//! `envoy/config/core/v3/base.proto`, and `google/protobuf/{struct,duration,wrappers}.proto`.
//!
//! To add a field, copy its type and number from the `.proto` file: `string name = 3;` is `#[prost(string, tag = "3")]`. A message is
//! `#[prost(message, optional, tag = …)]` and an `Option`, a repeated one `#[prost(message, repeated, tag = …)]` and a `Vec`, an enum
//! `#[prost(enumeration = "…", tag = …)]` and an `i32`. A field that is not declared is skipped when a message is decoded.

use std::collections::HashMap;

/// Asks whether a request is within its limits.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitRequest {
    /// The set of limits that applies.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// What the request is counted by; each is limited on its own.
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// The hits of each descriptor that does not state its own; 0 stands for 1.
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}

/// Keys and values by which a request is counted.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitDescriptor {
    /// The keys and values, in the order of the configuration.
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<Entry>,
    /// A limit in place of the configured one.
    #[prost(message, optional, tag = "2")]
    pub limit: Option<RateLimitOverride>,
    /// The hits of this descriptor; 0 only asks.
    #[prost(message, optional, tag = "3")]
    pub hits_addend: Option<UInt64Value>,
    /// Whether the hits are given back.
    #[prost(bool, tag = "4")]
    pub is_negative_hits: bool,
}

/// A key and its value.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Entry {
    /// Such as `remote_address`.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Such as `192.0.2.7`.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// A limit that a request brings along.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct RateLimitOverride {
    /// The hits in each unit of time.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// A [`RateLimitUnit`].
    #[prost(enumeration = "RateLimitUnit", tag = "2")]
    pub unit: i32,
}

/// The decision on a request.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitResponse {
    /// A [`Code`] for the request as a whole.
    #[prost(enumeration = "Code", tag = "1")]
    pub overall_code: i32,
    /// One status for each descriptor, in order.
    #[prost(message, repeated, tag = "2")]
    pub statuses: Vec<DescriptorStatus>,
    /// Headers for the client.
    #[prost(message, repeated, tag = "3")]
    pub response_headers_to_add: Vec<HeaderValue>,
    /// Headers for the upstream.
    #[prost(message, repeated, tag = "4")]
    pub request_headers_to_add: Vec<HeaderValue>,
    /// The body of a denial.
    #[prost(bytes = "vec", tag = "5")]
    pub raw_body: Vec<u8>,
    /// Metadata for later filters of Envoy.
    #[prost(message, optional, tag = "6")]
    pub dynamic_metadata: Option<Struct>,
}

/// The decision on one descriptor.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DescriptorStatus {
    /// A [`Code`].
    #[prost(enumeration = "Code", tag = "1")]
    pub code: i32,
    /// The limit, if there is one.
    #[prost(message, optional, tag = "2")]
    pub current_limit: Option<RateLimit>,
    /// The hits that are left.
    #[prost(uint32, tag = "3")]
    pub limit_remaining: u32,
    /// The time until the limit is whole again.
    #[prost(message, optional, tag = "4")]
    pub duration_until_reset: Option<Duration>,
}

/// A limit.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RateLimit {
    /// The hits in each unit of time.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// A [`Unit`].
    #[prost(enumeration = "Unit", tag = "2")]
    pub unit: i32,
    /// Its name in the configuration.
    #[prost(string, tag = "3")]
    pub name: String,
}

/// A header.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HeaderValue {
    /// Its name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Its value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// The outcome of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Code {
    /// No decision.
    Unknown = 0,
    /// Within the limits.
    Ok = 1,
    /// Over a limit.
    OverLimit = 2,
}

/// The unit of a limit in a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Unit {
    /// None of the others.
    Unknown = 0,
    /// 1 second.
    Second = 1,
    /// 60 seconds.
    Minute = 2,
    /// 60 minutes.
    Hour = 3,
    /// 24 hours.
    Day = 4,
    /// A calendar month, or 30 days.
    Month = 5,
    /// A calendar year, or 365 days.
    Year = 6,
    /// 7 days.
    Week = 7,
}

/// The unit of a limit in a request: a [`Unit`], but no week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum RateLimitUnit {
    /// None of the others.
    Unknown = 0,
    /// 1 second.
    Second = 1,
    /// 60 seconds.
    Minute = 2,
    /// 60 minutes.
    Hour = 3,
    /// 24 hours.
    Day = 4,
    /// A calendar month, or 30 days.
    Month = 5,
    /// A calendar year, or 365 days.
    Year = 6,
}

/// `google.protobuf.Struct`: an object of JSON.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Struct {
    /// Its members.
    #[prost(map = "string, message", tag = "1")]
    pub fields: HashMap<String, Value>,
}

/// `google.protobuf.Value`: any value of JSON.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Value {
    /// The value; without one, null.
    #[prost(oneof = "ValueKind", tags = "1, 2, 3, 4, 5, 6")]
    pub kind: Option<ValueKind>,
}

/// The kinds of a [`Value`].
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum ValueKind {
    /// Null; the number is always 0.
    #[prost(int32, tag = "1")]
    NullValue(i32),
    /// A number.
    #[prost(double, tag = "2")]
    NumberValue(f64),
    /// A text.
    #[prost(string, tag = "3")]
    StringValue(String),
    /// True or false.
    #[prost(bool, tag = "4")]
    BoolValue(bool),
    /// An object.
    #[prost(message, tag = "5")]
    StructValue(Struct),
    /// A list.
    #[prost(message, tag = "6")]
    ListValue(ListValue),
}

/// `google.protobuf.ListValue`: a list of JSON.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListValue {
    /// Its items.
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<Value>,
}

/// `google.protobuf.Duration`: a length of time.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Duration {
    /// Whole seconds.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// The rest.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// `google.protobuf.UInt64Value`: a number that may be missing.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct UInt64Value {
    /// The number.
    #[prost(uint64, tag = "1")]
    pub value: u64,
}

// === impl Code, Unit, RateLimitUnit ===

impl Code {
    /// Its name in the API.
    pub const fn as_str_name(self) -> &'static str {
        match self {
            Self::Unknown => "UNKNOWN",
            Self::Ok => "OK",
            Self::OverLimit => "OVER_LIMIT",
        }
    }
}

impl Unit {
    /// Its name in the API.
    pub const fn as_str_name(self) -> &'static str {
        match self {
            Self::Unknown => "UNKNOWN",
            Self::Second => "SECOND",
            Self::Minute => "MINUTE",
            Self::Hour => "HOUR",
            Self::Day => "DAY",
            Self::Month => "MONTH",
            Self::Year => "YEAR",
            Self::Week => "WEEK",
        }
    }
}

impl RateLimitUnit {
    /// Its name in the API.
    pub const fn as_str_name(self) -> &'static str {
        match self {
            Self::Unknown => "UNKNOWN",
            Self::Second => "SECOND",
            Self::Minute => "MINUTE",
            Self::Hour => "HOUR",
            Self::Day => "DAY",
            Self::Month => "MONTH",
            Self::Year => "YEAR",
        }
    }

    /// The unit with this name in the API.
    pub fn from_str_name(name: &str) -> Option<Self> {
        (0..=6).filter_map(|number| Self::try_from(number).ok()).find(|unit| unit.as_str_name() == name)
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    /// The bytes are written by hand after the `.proto` files.
    #[test]
    fn every_field_has_the_number_and_type_of_the_api() {
        let request = RateLimitRequest {
            domain: "edge".to_owned(),
            descriptors: vec![RateLimitDescriptor {
                entries: vec![Entry { key: "k".to_owned(), value: "v".to_owned() }],
                limit: Some(RateLimitOverride { requests_per_unit: 300, unit: RateLimitUnit::Year.into() }),
                hits_addend: Some(UInt64Value { value: 1 << 40 }),
                is_negative_hits: true,
            }],
            hits_addend: 7,
        };
        check(&request, "0a0465646765121a0a060a016b120176120508ac0210061a070880808080802020011807");
        let limit = RateLimit { requests_per_unit: 5, unit: Unit::Week.into(), name: "n".to_owned() };
        let header = |key: &str, value: &str| HeaderValue { key: key.to_owned(), value: value.to_owned() };
        let kinds = [
            ValueKind::NullValue(0),
            ValueKind::NumberValue(0.5),
            ValueKind::StringValue("s".to_owned()),
            ValueKind::BoolValue(true),
            ValueKind::StructValue(Struct::default()),
            ValueKind::ListValue(ListValue::default()),
        ];
        let list = ListValue { values: kinds.map(|kind| Value { kind: Some(kind) }).to_vec() };
        let field = Value { kind: Some(ValueKind::ListValue(list)) };
        let response = RateLimitResponse {
            overall_code: Code::Ok.into(),
            statuses: vec![DescriptorStatus {
                code: Code::OverLimit.into(),
                current_limit: Some(limit),
                limit_remaining: 9,
                duration_until_reset: Some(Duration { seconds: 60, nanos: 1 }),
            }],
            response_headers_to_add: vec![header("a", "b")],
            request_headers_to_add: vec![header("c", "d")],
            raw_body: vec![0xff],
            dynamic_metadata: Some(Struct { fields: HashMap::from([("f".to_owned(), field)]) }),
        };
        check(
            &response,
            "0801121308021207080510071a016e18092204083c10011a060a016112016222060a01631201642a\
             01ff32290a270a0166122232200a0208000a0911000000000000e03f0a031a01730a0220010a022a000a023200",
        );
    }

    fn check<M: Message + Default + PartialEq + std::fmt::Debug>(message: &M, hex: &str) {
        let digits = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(digits).collect();
        assert_eq!(message.encode_to_vec(), bytes);
        assert_eq!(M::decode(&*bytes).unwrap(), *message);
    }

    #[test]
    fn a_field_of_a_later_version_is_skipped() {
        let request = RateLimitRequest::decode(&b"\x0a\x01d\xba\x3e\x02xy\xc0\x3e\x05"[..]).unwrap();
        assert_eq!(request, RateLimitRequest { domain: "d".to_owned(), ..RateLimitRequest::default() });
    }

    #[test]
    fn units_of_requests_have_the_names_and_numbers_of_the_others() {
        for number in 0..=6 {
            let unit = RateLimitUnit::try_from(number).unwrap();
            assert_eq!(unit.as_str_name(), Unit::try_from(number).unwrap().as_str_name());
            assert_eq!(RateLimitUnit::from_str_name(unit.as_str_name()), Some(unit));
        }
        assert!(RateLimitUnit::try_from(7).is_err() && RateLimitUnit::from_str_name("WEEK").is_none());
    }
}
