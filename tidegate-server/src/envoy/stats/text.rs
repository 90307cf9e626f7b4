//! [`Stats`](super::Stats) as text: the dotted names of statsd, and the names that its exporter makes of them for Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::PoisonError;

use super::{Series, Stats, TIMES};

/// The method of the service; there is one.
const METHOD: &str = "ShouldRateLimit";

/// What stands before all that is about limits.
const LIMITS: &str = "ratelimit.service.rate_limit";

impl Stats {
    /// Every counter by its dotted name, a line each, in order of the alphabet.
    pub fn lines(&self) -> String {
        let mut lines = Vec::new();
        self.each_limit(|name, counters| {
            let name = name.iter().map(|part| clean(part)).collect::<Vec<_>>().join(".");
            lines.extend(counters.each().map(|(counter, value)| format!("{LIMITS}.{name}.{counter}: {value}\n")));
        });
        self.each_unknown(|domain, value| {
            lines.push(format!("{LIMITS}.{}.domain_not_found: {value}\n", clean(domain)));
        });
        lines.extend(self.each_event().map(|(name, _, _, value)| format!("{name}: {value}\n")));
        let total = self.0.service.total_requests.value();
        lines.push(format!("ratelimit_server.{METHOD}.total_requests: {total}\n"));
        lines.sort_unstable();
        lines.concat()
    }

    /// Every counter in the text format of `OpenMetrics`, without its end, so that more can follow.
    ///
    /// The names have no `_total`, since dashboards know them without; so the type of a counter is unknown.
    pub fn open_metrics(&self) -> String {
        let mut families: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
        let mut add = |family: String, labels: String, value: u64| {
            let sum = families.entry(family).or_default().entry(labels).or_default();
            *sum = sum.saturating_add(value);
        };
        self.each_limit(|name, counters| {
            // The exporter has names for two levels; what stands deeper is counted with them.
            let labels = ["domain", "key1", "key2"].into_iter().zip(name);
            let labels: Vec<String> = labels.map(|(label, part)| labelled(label, &clean(part))).collect();
            for (counter, value) in counters.each() {
                add(format!("ratelimit_service_rate_limit_{counter}"), labels.join(","), value);
            }
        });
        self.each_unknown(|domain, value| {
            let family = "ratelimit_service_rate_limit_domain_not_found";
            add(family.to_owned(), labelled("domain", &clean(domain)), value);
        });
        for (_, family, labels, value) in self.each_event() {
            add(family.to_owned(), labels.to_owned(), value);
        }
        let requests = self.0.service.total_requests.value();
        add("ratelimit_service_total_requests".to_owned(), labelled("grpc_method", METHOD), requests);
        let mut text = String::new();
        for (family, series) in families {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "# TYPE {family} unknown");
            for (labels, value) in series {
                let _ = match labels.as_str() {
                    "" => writeln!(text, "{family} {value}"),
                    labels => writeln!(text, "{family}{{{labels}}} {value}"),
                };
            }
        }
        text + &self.times()
    }

    /// How long requests took.
    fn times(&self) -> String {
        let (service, family) = (&self.0.service, "ratelimit_service_response_time_seconds");
        let (method, mut below) = (labelled("grpc_method", METHOD), 0);
        let mut text = format!("# TYPE {family} histogram\n");
        for (end, number) in TIMES.iter().zip(&service.times) {
            below += number.value();
            let end = *end as f64 / 1e6;
            let _ = writeln!(text, "{family}_bucket{{{method},le=\"{end}\"}} {below}");
        }
        // A request that was counted between two reads must not make the last bucket smaller than one before it.
        let (count, sum) = (service.total_requests.value().max(below), service.time.value() as f64 / 1e6);
        let _ = writeln!(text, "{family}_bucket{{{method},le=\"+Inf\"}} {count}");
        let _ = writeln!(text, "{family}_count{{{method}}} {count}\n{family}_sum{{{method}}} {sum}");
        text
    }

    fn each_limit(&self, mut seen: impl FnMut(&[String], &super::Counters)) {
        let Series { known, .. } = &*self.0.limits.read().unwrap_or_else(PoisonError::into_inner);
        for (name, counters) in known {
            seen(name, counters);
        }
    }

    fn each_unknown(&self, mut seen: impl FnMut(&str, u64)) {
        let Series { known, .. } = &*self.0.unknown_domains.read().unwrap_or_else(PoisonError::into_inner);
        for (name, number) in known {
            seen(&name.concat(), number.value());
        }
    }

    /// What happened to whole requests and configurations: the dotted name, that for Prometheus, its labels, and the number.
    fn each_event(&self) -> [(&'static str, &'static str, &'static str, u64); 5] {
        let service = &self.0.service;
        let error = "ratelimit_service_should_rate_limit_error";
        [
            (
                "ratelimit.service.call.should_rate_limit.service_error",
                error,
                "err_type=\"service_error\"",
                service.service_error.value(),
            ),
            (
                "ratelimit.service.call.should_rate_limit.redis_error",
                error,
                "err_type=\"redis_error\"",
                service.redis_error.value(),
            ),
            (
                "ratelimit.service.global_shadow_mode",
                "ratelimit_service_global_shadow_mode",
                "",
                service.global_shadow_mode.value(),
            ),
            (
                "ratelimit.service.config_load_success",
                "ratelimit_service_config_load_success",
                "",
                service.config_load_success.value(),
            ),
            (
                "ratelimit.service.config_load_error",
                "ratelimit_service_config_load_error",
                "",
                service.config_load_error.value(),
            ),
        ]
    }
}

/// A part of a name without what separates parts, values and types: `:`, `|`, and the dots of an IPv4 address. Nor may it end
/// the line.
fn clean(part: &str) -> String {
    let mut cleaned: String =
        part.chars().map(|c| if matches!(c, ':' | '|') || c.is_control() { '_' } else { c }).collect();
    let mut from = 0;
    while let Some(length) = cleaned.get(from..).map(address) {
        if length > 0 {
            let address = cleaned[from..from + length].replace('.', "_");
            cleaned.replace_range(from..from + length, &address);
        }
        // Past the address, or past what cannot begin one.
        let rest = &cleaned[from + length..];
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let next = rest[digits..].find(|c: char| c.is_ascii_digit()).map(|other| digits + other);
        match next {
            Some(next) => from += length + next,
            None => break,
        }
    }
    cleaned
}

/// The length of the IPv4 address that `text` begins with, or 0.
fn address(text: &str) -> usize {
    let mut length = 0;
    for place in 0..4 {
        let rest = &text[length..];
        let rest = if place == 0 { rest } else { rest.strip_prefix('.').unwrap_or_default() };
        let digits = rest.bytes().take(4).take_while(u8::is_ascii_digit).count();
        if !(1..=3).contains(&digits) {
            return 0;
        }
        length += digits + usize::from(place > 0);
    }
    length
}

fn labelled(label: &str, value: &str) -> String {
    format!("{label}=\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_hold_nothing_that_separates_names() {
        let cases = [
            ("plain_value", "plain_value"),
            ("a:b|c", "a_b_c"),
            ("ip_203.0.113.9", "ip_203_0_113_9"),
            ("10.0.0.1 10.0.0.2", "10_0_0_1 10_0_0_2"),
            ("v1.2.3", "v1.2.3"),
            ("1.2.3.4567", "1.2.3.4567"),
            ("host.example.com", "host.example.com"),
            ("2001:db8::1", "2001_db8__1"),
            ("ü_1.2.3.4ß", "ü_1_2_3_4ß"),
            ("line\nbreak", "line_break"),
            ("", ""),
        ];
        for (part, expected) in cases {
            assert_eq!(clean(part), expected);
        }
    }

    #[test]
    fn an_empty_registry_has_all_that_is_not_about_a_limit() {
        let text = Stats::default().open_metrics();
        for name in [
            "ratelimit_service_should_rate_limit_error{err_type=\"redis_error\"} 0",
            "ratelimit_service_should_rate_limit_error{err_type=\"service_error\"} 0",
            "ratelimit_service_config_load_success 0",
            "ratelimit_service_config_load_error 0",
            "ratelimit_service_global_shadow_mode 0",
            "ratelimit_service_total_requests{grpc_method=\"ShouldRateLimit\"} 0",
            "ratelimit_service_response_time_seconds_count{grpc_method=\"ShouldRateLimit\"} 0",
        ] {
            assert!(text.lines().any(|line| line == name), "{name}\n{text}");
        }
    }
}
