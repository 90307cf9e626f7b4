//! The report as one HTML page that needs no network.

use std::fmt::Write;

use super::format::{format_count, format_factor};
use super::goals::Goal;
use super::load_stats::CpuUsage;
use super::picture;
use super::plot::{Plot, Scale, Series};
use super::report::Report;
use super::results::{PhaseResults, TimelinePoint};
use super::summary;
use super::tables::{endpoint_table, phase_table};
use crate::table::escape_html;

const STYLE: &str = concat!(include_str!("palette.css"), include_str!("plot.css"), include_str!("page.css"));

/// Renders the whole file.
pub(crate) fn render_page(report: &Report) -> String {
    let by_endpoint = |results| {
        let table = endpoint_table(results).html();
        format!("<h3>{}</h3>\n<div class=\"wide\">{table}</div>\n", title(results))
    };
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <link rel=\"icon\" href=\"data:,\">\n<title>tidegate-lab surge, {}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         {}{}<h2>Before and after</h2>\n<div class=\"wide compare\">{}</div>\n{}{}\
         <h2>By endpoint</h2>\n<p>Times in milliseconds, from when a request was due. “Allowed” are all requests that no \
         limit denied, whatever their outcome; “cut off” requests were in flight when the phase ended, and count with the \
         time they had waited. The last columns are about denied requests.</p>\n{}{}</body>\n</html>\n",
        escape_html(&report.date),
        opening(report),
        goals(report),
        phase_table(&report.phases).html(),
        over_time(&report.phases),
        ride_shares(&report.phases),
        report.phases.iter().map(by_endpoint).collect::<String>(),
        outro(report),
    )
}

fn title(results: &PhaseResults) -> String {
    format!("Phase {}: {}", results.phase, escape_html(results.title))
}

/// The conclusion, the picture that shows it, and the phases in words.
fn opening(report: &Report) -> String {
    let stopped = if report.stopped { "<p class=\"bad\">Stopped early: this report is incomplete.</p>\n" } else { "" };
    let mut warnings = String::new();
    if !report.warnings.is_empty() {
        let items = report.warnings.iter().map(|warning| escape_html(warning)).collect::<Vec<_>>().join("</li><li>");
        let summary = summary::DISTURBANCE;
        warnings = format!(
            "<details class=\"warning\"><summary>Beware: {summary}.</summary><ul><li>{items}</li></ul></details>\n"
        );
    }
    format!(
        "<h1>Surge: an overloaded service without and with limits</h1>\n<p class=\"conclusion\">{}</p>\n{stopped}{warnings}\
         <div class=\"opening\">\n{}<section>\n{}</section>\n</div>\n",
        escape_html(&summary::conclusion(report)),
        picture::render(report),
        phases_in_words(report),
    )
}

/// What happens in each phase.
fn phases_in_words(report: &Report) -> String {
    let flood = match report.flood_connections {
        0 => String::new(),
        connections => {
            let connections = format_count(connections.into());
            format!("; in the last two phases, another bot floods them over {connections} connections")
        }
    };
    let mut html = format!(
        "<h2>The four phases</h2>\n<p>{} riders, a bot and convoys of drivers use a service that can match 150 riders a second, through \
         {}{flood}. Each phase takes {} seconds and has different limits.</p>\n<ol class=\"phases\">\n",
        format_count(report.users.into()),
        if report.instances == 1 { "one gateway".to_owned() } else { format!("{} gateways", report.instances) },
        report.seconds_per_phase,
    );
    for results in &report.phases {
        // Writing to a string does not fail, here and below.
        let (class, text) = (results.css_class(), escape_html(&summary::explain_phase(results)));
        let _ = writeln!(html, "<li class=\"{class}\"><b>{}</b>{text}</li>", title(results));
    }
    html.push_str("</ol>\n");
    if let Some(text) = summary::explain_matched_riders(report) {
        let _ = writeln!(html, "<h3>Why phase 3 matches more riders than phase 4</h3>\n<p>{}</p>", escape_html(&text));
    }
    html
}

fn goals(report: &Report) -> String {
    let mut html = format!("<h2>Goals</h2>\n<p>{}.</p>\n<ul class=\"goals\">\n", summary::goal_counts(report));
    let mut last_reason = "";
    for Goal { text, result, reached, not_judged } in &report.goals {
        let (class, mark) = match reached {
            Some(true) => ("good", "✓ reached"),
            Some(false) => ("bad", "✗ missed"),
            None => ("open", "not judged"),
        };
        // Neighbors often have the same reason.
        let new_reason = not_judged.as_ref().filter(|reason| std::mem::replace(&mut last_reason, reason) != **reason);
        let reason = new_reason.map_or(String::new(), |reason| format!("<small>{}</small>", escape_html(reason)));
        let (text, result) = (escape_html(text), escape_html(result));
        let _ = writeln!(
            html,
            "<li class=\"{class}\"><span class=\"mark\">{mark}</span> {text}: <b>{result}</b>{reason}</li>"
        );
    }
    html + "</ul>\n"
}

/// Plots over time: a row for each quantity, a plot for each phase.
fn over_time(phases: &[PhaseResults]) -> String {
    let mut html = "<h2>Second by second</h2>\n".to_owned();
    html.push_str("<h3>Latency of the riders’ allowed requests, by when they were due</h3>\n");
    html.push_str("<p class=\"soft\">Requests in flight at the end count with the time they had waited, so that the lines fall there although nothing got faster.</p>\n");
    html.push_str(&legend(&[("p99", "99th percentile"), ("median", "median")]));
    html.push_str(&plot_row(
        phases,
        |_| Scale::Log(0, 5),
        |points| {
            let line =
                |of: fn(&TimelinePoint) -> Option<f64>| seconds(points).map(|(x, point)| (x, of(point))).collect();
            vec![Series::Line("p99", line(|point| point.p99)), Series::Line("median", line(|point| point.median))]
        },
    ));
    html.push_str("<h3>Outcomes of the riders’ requests, per second</h3>\n");
    html.push_str(&legend(&[("served", "served"), ("failed", "failed or timed out"), ("denied", "denied with 429")]));
    let total = |point: &TimelinePoint| (point.served + point.failed + point.refused) as f64;
    html.push_str(&plot_row(
        phases,
        |all| Scale::fitting(all.map(total)),
        |points| {
            let area = |from: fn(&TimelinePoint) -> u64, to: fn(&TimelinePoint) -> u64| {
                seconds(points).map(|(x, point)| (x, from(point) as f64, to(point) as f64)).collect()
            };
            vec![
                Series::Area("denied", area(|it| it.served + it.failed, |it| it.served + it.failed + it.refused)),
                Series::Area("failed", area(|it| it.served, |it| it.served + it.failed)),
                Series::Area("served", area(|_| 0, |it| it.served)),
            ]
        },
    ));
    html
}

/// The points with the middle of their second as x.
fn seconds(points: &[TimelinePoint]) -> impl Iterator<Item = (f64, &TimelinePoint)> {
    points.iter().enumerate().map(|(second, point)| (second as f64 + 0.5, point))
}

/// A plot for each phase, all on the same scale.
fn plot_row(
    phases: &[PhaseResults],
    scale: impl Fn(&mut dyn Iterator<Item = &TimelinePoint>) -> Scale,
    series: impl Fn(&[TimelinePoint]) -> Vec<Series>,
) -> String {
    let scale = scale(&mut phases.iter().flat_map(|results| &results.timeline));
    let mut html = "<div class=\"row\">\n".to_owned();
    for results in phases {
        let short = results.short_title();
        let label = format!("phase {}: {short}", results.phase);
        let x_max = results.timeline.len().max(1) as f64;
        let (width, height) = Plot::SMALL;
        let plot = Plot { label, width, height, x_max, x_unit: "s", scale, series: series(&results.timeline) };
        let _ = writeln!(html, "<figure>{}<figcaption>{} {short}</figcaption></figure>", plot.svg(), results.phase);
    }
    html + "</div>\n"
}

fn legend(entries: &[(&str, &str)]) -> String {
    let entry = |(class, text): &(&str, &str)| format!("<span><i class=\"{class}\"></i>{text}</span>");
    format!("<p class=\"legend\">{}</p>\n", entries.iter().map(entry).collect::<String>())
}

/// Rides per rider, and the largest multiple of the limit.
fn ride_shares(phases: &[PhaseResults]) -> String {
    let rides = phases.iter().flat_map(|results| &results.crowd.curve).map(|rides| f64::from(*rides));
    let line = |results: &PhaseResults| {
        let last = results.crowd.curve.len().saturating_sub(1).max(1) as f64;
        let points = results.crowd.curve.iter().enumerate();
        let points = points.map(|(index, rides)| (index as f64 / last * 100.0, Some(f64::from(*rides)))).collect();
        Series::Line(results.css_class(), points)
    };
    let label = "rides of each rider, in ascending order".to_owned();
    let scale = Scale::fitting(rides);
    let series = phases.iter().map(line).collect();
    let (width, height) = (380.0, 200.0);
    let plot = Plot { label, width, height, x_max: 100.0, x_unit: "% of riders", scale, series };
    let names: Vec<_> = phases.iter().map(|results| (results.css_class(), results.short_title())).collect();
    let (legend, svg, bars) = (legend(&names), plot.svg(), bars(phases));
    format!(
        "<h2>Rides per rider</h2>\n<div class=\"row two\">\n<figure><h3>Rides of each rider, sorted</h3>{legend}{svg}</figure>\n\
         <figure><h3>Largest multiple of the ride-request limit that one subject got</h3>{bars}</figure>\n</div>\n"
    )
}

/// A bar for each phase: the largest multiple of the limit that one subject got.
fn bars(phases: &[PhaseResults]) -> String {
    let max_factor = phases.iter().filter_map(factor).fold(1.0, f64::max);
    let mut html = "<div class=\"bars\">\n".to_owned();
    for results in phases {
        let (name, class) = (results.short_title(), results.css_class());
        let (share, text) = match factor(results) {
            Some(factor) => {
                let overshoot = format_count(results.overshoot());
                (factor / max_factor * 100.0, format!("{}, {overshoot} requests over the limit", format_factor(factor)))
            }
            None => (0.0, "no limit".to_owned()),
        };
        let _ = writeln!(
            html,
            "<div>{} {name}<span class=\"bar {class}\" style=\"width:{share:.1}%\"></span>\
             <span class=\"value\">{text}</span></div>",
            results.phase
        );
    }
    html + "</div>\n"
}

fn factor(results: &PhaseResults) -> Option<f64> {
    results.ride_limit().map(|audit| audit.factor)
}

fn outro(report: &Report) -> String {
    let mut lines = vec![
        ("command".to_owned(), report.command.clone()),
        ("date".to_owned(), report.date.clone()),
        ("seed".to_owned(), report.seed.to_string()),
        ("tidegate".to_owned(), report.version.to_owned()),
        ("store".to_owned(), report.store.clone()),
        ("timeout of riders".to_owned(), format!("{} s", report.time_out_seconds)),
        ("CPUs".to_owned(), report.processors.to_string()),
    ];
    for results in &report.phases {
        let busy =
            |cpu: CpuUsage| format!("{:.0} % busy, {:.0} % with other programs", cpu.share * 100.0, cpu.others * 100.0);
        let cpu = results.load.cpu.map_or("unknown".to_owned(), busy);
        let (lag, staff) = (results.load.lag.p99, results.load.staff_lag.p99);
        let text = format!(
            "CPUs {cpu}; 99 % of the requests were sent within {lag:.1} ms (riders) or {staff:.0} ms (drivers) of when they \
             were due"
        );
        lines.push((format!("load of phase {}", results.phase), text));
    }
    let line = |(name, value): (String, String)| format!("<dt>{name}</dt><dd>{}</dd>\n", escape_html(&value));
    format!("<h2>About this run</h2>\n<dl>\n{}</dl>\n", lines.into_iter().map(line).collect::<String>())
}
