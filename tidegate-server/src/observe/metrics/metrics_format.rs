//! `MetricsFormat`: the text formats of the metrics page. Prometheus text 0.0.4 is the default, `OpenMetrics` 1.0.0 is sent to
//! a scraper that prefers it in `Accept`.
//!
//! The metrics are encoded as `OpenMetrics` and converted: Prometheus text calls a counter by the name of its samples, has no
//! `unknown` type, no units and no end mark.

use std::fmt::Write as _;

use http::HeaderMap;
use http::header::ACCEPT;

/// The last line of a page in `OpenMetrics`.
const OPEN_METRICS_END: &str = "# EOF\n";

/// A text format of the metrics page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricsFormat {
    Prometheus,
    OpenMetrics,
}

impl MetricsFormat {
    /// The format that a scraper prefers.
    pub(crate) fn from_headers(headers: &HeaderMap) -> Self {
        let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let (mut open_metrics, mut prometheus) = (0.0, 0.0_f32);
        for range in values.flat_map(|value| value.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let media_type = parts.next().unwrap_or_default();
            let quality = parts.filter_map(|part| part.strip_prefix("q=")).find_map(|quality| quality.parse().ok());
            let quality: f32 = quality.unwrap_or(1.0);
            match media_type {
                "application/openmetrics-text" => open_metrics = quality.max(open_metrics),
                "text/plain" | "text/*" | "*/*" => prometheus = quality.max(prometheus),
                _ => {}
            }
        }
        if open_metrics > 0.0 && open_metrics >= prometheus { Self::OpenMetrics } else { Self::Prometheus }
    }

    /// The value of `Content-Type`.
    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// The page, from parts in `OpenMetrics`, each with or without its end mark.
    pub(crate) fn page(self, parts: &[&str]) -> String {
        let lines = || parts.iter().flat_map(|part| part.strip_suffix(OPEN_METRICS_END).unwrap_or(part).lines());
        let mut page = String::new();
        match self {
            Self::OpenMetrics => {
                lines().for_each(|line| page.extend([line, "\n"]));
                page.push_str(OPEN_METRICS_END);
            }
            Self::Prometheus => convert(lines(), &mut page),
        }
        page
    }
}

/// Writes lines of `OpenMetrics` as Prometheus text.
fn convert<'l>(lines: impl Iterator<Item = &'l str>, page: &mut String) {
    // `HELP` comes before `TYPE`, and its name depends on the type.
    let mut help = None;
    for line in lines {
        let mut words = line.splitn(4, ' ');
        // Writing to a string cannot fail.
        let _ = match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("HELP"), Some(family), text) => {
                help = Some((family, text.unwrap_or_default()));
                Ok(())
            }
            (Some("#"), Some("TYPE"), Some(family), Some(kind)) => {
                let (suffix, kind) = match kind {
                    "counter" => ("_total", "counter"),
                    "unknown" => ("", "untyped"),
                    kind => ("", kind),
                };
                if let Some((_, text)) = help.take().filter(|(owner, _)| *owner == family) {
                    // Only `OpenMetrics` escapes quotes here.
                    let _ = writeln!(page, "# HELP {family}{suffix} {}", text.replace("\\\"", "\""));
                }
                writeln!(page, "# TYPE {family}{suffix} {kind}")
            }
            (Some("#"), ..) => Ok(()),
            _ => writeln!(page, "{line}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(accept: &str) -> MetricsFormat {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, accept.parse().unwrap());
        MetricsFormat::from_headers(&headers)
    }

    #[test]
    fn a_scraper_gets_the_format_that_it_prefers() {
        let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                          text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(chosen(prometheus), MetricsFormat::OpenMetrics);
        assert_eq!(chosen("text/plain, application/openmetrics-text; q=0.5"), MetricsFormat::Prometheus);
        assert_eq!(chosen("application/openmetrics-text; q=0"), MetricsFormat::Prometheus);
        assert_eq!(chosen("*/*"), MetricsFormat::Prometheus);
        assert_eq!(MetricsFormat::from_headers(&HeaderMap::new()), MetricsFormat::Prometheus);
    }

    #[test]
    fn counters_unknown_types_units_and_the_end_are_converted() {
        let own = "# HELP hits Hits of \\\"all\\\" kinds.\n# TYPE hits counter\nhits_total{rule=\"a b\"} 3\n\
                   # TYPE size_bytes gauge\n# UNIT size_bytes bytes\nsize_bytes 7\n# EOF\n";
        let other = "# HELP old An old name\n# TYPE old unknown\nold 1\n";
        let page = MetricsFormat::Prometheus.page(&[own, other]);
        let expected = "# HELP hits_total Hits of \"all\" kinds.\n# TYPE hits_total counter\nhits_total{rule=\"a b\"} 3\n\
                        # TYPE size_bytes gauge\nsize_bytes 7\n# HELP old An old name\n# TYPE old untyped\nold 1\n";
        assert_eq!(page, expected);
        let page = MetricsFormat::OpenMetrics.page(&[own, other]);
        assert!(page.ends_with("old 1\n# EOF\n") && page.matches("# EOF").count() == 1, "{page}");
    }
}
