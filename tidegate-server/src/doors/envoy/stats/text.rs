//! [`Stats`](super::Stats) as text: by statsd names, and by the Prometheus names that the statsd exporter derives from them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{BUCKETS_MICROS, SeriesMap, Stats};

/// The only method of the service.
const GRPC_METHOD: &str = "ShouldRateLimit";

/// Prefix of the names of limit counters.
const LIMIT_PREFIX: &str = "ratelimit.service.rate_limit";

impl Stats {
    /// All counters by their statsd names, one line each, sorted. Counters whose names are alike after sanitising are summed.
    pub fn lines(&self) -> String {
        let mut values: BTreeMap<String, u64> = BTreeMap::new();
        let mut add = |name: String, value: u64| {
            let sum = values.entry(name).or_default();
            *sum = sum.saturating_add(value);
        };
        self.for_each_limit(|name, counters| {
            let name = name.iter().map(|part| sanitize(part)).collect::<Vec<_>>().join(".");
            for (counter, value) in counters.values() {
                add(format!("{LIMIT_PREFIX}.{name}.{counter}"), value);
            }
        });
        self.for_each_unknown_domain(|domain, value| {
            add(format!("{LIMIT_PREFIX}.{}.domain_not_found", sanitize(domain)), value);
        });
        for (name, _, _, value) in self.event_counters() {
            add(name.to_owned(), value);
        }
        add(format!("ratelimit_server.{GRPC_METHOD}.total_requests"), self.0.service.total_requests.value());
        let mut text = String::new();
        for (name, value) in values {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{name}: {value}");
        }
        text
    }

    /// All counters in the text format of `OpenMetrics`, without the final `# EOF`, so that more can follow.
    ///
    /// The names lack `_total`, since existing dashboards expect them so; therefore the type is `unknown`.
    pub fn open_metrics(&self) -> String {
        let mut families: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
        let mut add = |family: String, labels: String, value: u64| {
            let sum = families.entry(family).or_default().entry(labels).or_default();
            *sum = sum.saturating_add(value);
        };
        self.for_each_limit(|name, counters| {
            // The exporter has labels for two levels; deeper levels are added to them.
            let labels = ["domain", "key1", "key2"].into_iter().zip(name);
            let labels: Vec<String> = labels.map(|(label, part)| format_label(label, &sanitize(part))).collect();
            for (counter, value) in counters.values() {
                add(format!("ratelimit_service_rate_limit_{counter}"), labels.join(","), value);
            }
        });
        self.for_each_unknown_domain(|domain, value| {
            let family = "ratelimit_service_rate_limit_domain_not_found";
            add(family.to_owned(), format_label("domain", &sanitize(domain)), value);
        });
        for (_, family, labels, value) in self.event_counters() {
            add(family.to_owned(), labels.to_owned(), value);
        }
        let requests = self.0.service.total_requests.value();
        add("ratelimit_service_total_requests".to_owned(), format_label("grpc_method", GRPC_METHOD), requests);
        let mut text = String::new();
        for (family, series) in families {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "# HELP {family} {}\n# TYPE {family} unknown", help(&family));
            for (labels, value) in series {
                let _ = match labels.as_str() {
                    "" => writeln!(text, "{family} {value}"),
                    labels => writeln!(text, "{family}{{{labels}}} {value}"),
                };
            }
        }
        text + &self.response_time_histogram()
    }

    fn response_time_histogram(&self) -> String {
        let (service, family) = (&self.0.service, "ratelimit_service_response_time_seconds");
        let (method, mut cumulative) = (format_label("grpc_method", GRPC_METHOD), 0);
        let mut text = format!("# HELP {family} {}\n# TYPE {family} histogram\n", help(family));
        for (bound, count) in BUCKETS_MICROS.iter().zip(&service.response_time_buckets) {
            cumulative += count.value();
            let bound = *bound as f64 / 1e6;
            let _ = writeln!(text, "{family}_bucket{{{method},le=\"{bound}\"}} {cumulative}");
        }
        // Requests counted between two reads must not make the last bucket smaller than the one before it.
        let (count, sum) =
            (service.total_requests.value().max(cumulative), service.response_micros.value() as f64 / 1e6);
        let _ = writeln!(text, "{family}_bucket{{{method},le=\"+Inf\"}} {count}");
        let _ = writeln!(text, "{family}_count{{{method}}} {count}\n{family}_sum{{{method}}} {sum}");
        text
    }

    fn for_each_limit(&self, mut visit: impl FnMut(&[String], &super::LimitCounters)) {
        let SeriesMap { by_name, .. } = &*self.0.limits.read();
        for (name, counters) in by_name {
            visit(name, counters);
        }
    }

    fn for_each_unknown_domain(&self, mut visit: impl FnMut(&str, u64)) {
        let SeriesMap { by_name, .. } = &*self.0.unknown_domains.read();
        for (name, count) in by_name {
            visit(&name.concat(), count.value());
        }
    }

    /// The counters of events: statsd name, Prometheus name, its labels, and the value.
    fn event_counters(&self) -> [(&'static str, &'static str, &'static str, u64); 5] {
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

/// Replaces the separators of statsd (`:`, `|`), the dots of IPv4 addresses, and control characters by `_`.
fn sanitize(part: &str) -> String {
    let mut sanitized: String =
        part.chars().map(|c| if matches!(c, ':' | '|') || c.is_control() { '_' } else { c }).collect();
    let mut offset = 0;
    while let Some(length) = sanitized.get(offset..).map(ipv4_length) {
        if length > 0 {
            let address = sanitized[offset..offset + length].replace('.', "_");
            sanitized.replace_range(offset..offset + length, &address);
        }
        // Skips the address, or digits that do not start one.
        let rest = &sanitized[offset + length..];
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let next = rest[digits..].find(|c: char| c.is_ascii_digit()).map(|other| digits + other);
        match next {
            Some(next) => offset += length + next,
            None => break,
        }
    }
    sanitized
}

/// The length of the IPv4 address that `text` starts with, or 0.
fn ipv4_length(text: &str) -> usize {
    let mut length = 0;
    for octet in 0..4 {
        let rest = &text[length..];
        let rest = if octet == 0 { rest } else { rest.strip_prefix('.').unwrap_or_default() };
        let digits = rest.bytes().take(4).take_while(u8::is_ascii_digit).count();
        if !(1..=3).contains(&digits) {
            return 0;
        }
        length += digits + usize::from(octet > 0);
    }
    length
}

/// The description of a metric family.
fn help(family: &str) -> &'static str {
    match family.strip_prefix("ratelimit_service_").unwrap_or_default() {
        "rate_limit_total_hits" => "Hits of a limit",
        "rate_limit_over_limit" => "Hits over a limit",
        "rate_limit_near_limit" => "Hits near a limit",
        "rate_limit_within_limit" => "Hits within a limit",
        "rate_limit_shadow_mode" => "Hits over a limit in shadow mode",
        "rate_limit_over_limit_with_local_cache" => "Hits refused by a local cache, which does not exist here",
        "rate_limit_domain_not_found" => "Requests for a domain that is not configured",
        "should_rate_limit_error" => "Requests that failed, by the kind of error",
        "global_shadow_mode" => "Requests that passed in global shadow mode",
        "config_load_success" => "Configurations that were loaded",
        "config_load_error" => "Configurations that could not be loaded",
        "total_requests" => "Requests to the rate limit service",
        "response_time_seconds" => "Duration of requests to the rate limit service",
        _ => "A counter of the rate limit service",
    }
}

fn format_label(label: &str, value: &str) -> String {
    format!("{label}=\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_contain_no_separators() {
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
            assert_eq!(sanitize(part), expected);
        }
    }

    /// Otherwise `/stats` would have two lines of one name, of which a statsd exporter keeps one.
    #[test]
    fn counters_whose_names_become_alike_are_summed() {
        let stats = Stats::default();
        let hits = super::super::Hits { count: 2, before: 0, limit: 9, near_threshold: 9, over: false, shadow: false };
        for value in ["10.0.0.1", "10_0_0_1"] {
            stats.limit_counters(vec!["edge".to_owned(), format!("ip_{value}")]).add(hits);
            stats.count_unknown_domain(&format!("d|{value}"));
            stats.count_unknown_domain(&format!("d:{value}"));
        }
        let lines = stats.lines();
        assert!(lines.contains("ratelimit.service.rate_limit.edge.ip_10_0_0_1.total_hits: 4\n"), "{lines}");
        assert!(lines.contains("ratelimit.service.rate_limit.d_10_0_0_1.domain_not_found: 4\n"), "{lines}");
        let mut names: Vec<&str> = lines.lines().filter_map(|line| line.split(": ").next()).collect();
        names.dedup();
        assert_eq!(names.len(), lines.lines().count(), "each name once: {lines}");
    }

    #[test]
    fn the_counters_of_the_service_are_present_from_the_start() {
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
