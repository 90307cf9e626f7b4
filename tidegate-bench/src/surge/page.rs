//! The page: one file with everything in it, for any browser, without a network. It shows what a [`Report`] says.

use std::fmt::Write;

use super::found::{Found, Moment};
use super::machine::Busy;
use super::numbers::{times, whole};
use super::plot::{Plot, Scale, Shape};
use super::report::Report;
use super::table::{Table, escaped};

const STYLE: &str = include_str!("page.css");

/// What the phases are called where there is little room.
const SHORT: [&str; 4] = ["no limits", "each gateway its own", "shared", "shared + capacity"];

/// The colours of the phases, by class.
const CLASSES: [&str; 4] = ["one", "two", "three", "four"];

/// The whole file.
pub(crate) fn page(report: &Report) -> String {
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <link rel=\"icon\" href=\"data:,\">\n<title>tidegate surge, {}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n",
        escaped(&report.date)
    );
    html.push_str(&intro(report));
    html.push_str(&aims(report));
    html.push_str("<h2>Before and after</h2>\n<div class=\"wide\">");
    html.push_str(&Table::of_phases(&report.phases).html());
    html.push_str("</div>\n");
    html.push_str(&over_time(&report.phases));
    html.push_str(&shares(&report.phases));
    html.push_str("<h2>By endpoint</h2>\n<p>Times in milliseconds, from when a request was due. “Allowed” is everything that no \
                   limit refused, however it ended; “cut off” still waited when the phase ended, and counts with the time it \
                   had waited. The last columns are of those that were refused.</p>\n");
    for found in &report.phases {
        let table = Table::of_endpoints(found).html();
        let _ = write!(html, "<h3>{}</h3>\n<div class=\"wide\">{table}</div>\n", title(found));
    }
    html.push_str(&outro(report));
    html.push_str("</body>\n</html>\n");
    html
}

fn title(found: &Found) -> String {
    format!("Phase {}: {}", found.phase, escaped(found.title))
}

fn intro(report: &Report) -> String {
    let stopped =
        if report.stopped { "<p class=\"bad\">Stopped before its time: what is here is not all.</p>\n" } else { "" };
    let mut doubts = String::new();
    for doubt in &report.doubts {
        // Writing to a string does not fail, here and below.
        let _ = writeln!(doubts, "<p class=\"doubt\">{}</p>", escaped(doubt));
    }
    format!(
        "<h1>The concert, before and after</h1>\n<p class=\"lead\">{} riders, a bot and a convoy of drivers meet a service that \
         can match 150 riders a second, through {} that keep their limits in {}. Four times {} seconds, each with other \
         limits.</p>\n{stopped}{doubts}",
        whole(report.users.into()),
        if report.instances == 1 { "one gateway".to_owned() } else { format!("{} gateways", report.instances) },
        escaped(&report.store),
        report.seconds_per_phase,
    )
}

fn aims(report: &Report) -> String {
    let mut html = "<ul class=\"aims\">\n".to_owned();
    for aim in &report.aims {
        let (class, mark) = match aim.reached {
            Some(true) => ("good", "✓ reached"),
            Some(false) => ("bad", "✗ missed"),
            None => ("open", "not judged"),
        };
        let (aim, found) = (escaped(aim.what), escaped(&aim.found));
        let _ = writeln!(html, "<li class=\"{class}\"><span class=\"mark\">{mark}</span> {aim} <b>{found}</b></li>");
    }
    html + "</ul>\n"
}

/// A row of pictures for each thing that changes with time, a picture for each phase.
fn over_time(phases: &[Found]) -> String {
    let mut html = "<h2>Second by second</h2>\n".to_owned();
    html.push_str("<h3>How long riders waited for what no limit refused, by when it was due</h3>\n");
    html.push_str("<p>What still waited at the end counts with the time it had waited: there the lines fall, and nothing got better.</p>\n");
    html.push_str(&legend(&[("p99", "99th percentile"), ("median", "median")]));
    html.push_str(&row(
        phases,
        |_| Scale::Log(0, 5),
        |moments| {
            let line = |of: fn(&Moment) -> Option<f64>| seconds(moments).map(|(x, moment)| (x, of(moment))).collect();
            vec![Shape::Line("p99", line(|moment| moment.p99)), Shape::Line("median", line(|moment| moment.median))]
        },
    ));
    html.push_str("<h3>How many waited for a worker of the matching service</h3>\n");
    html.push_str(&row(
        phases,
        |all| Scale::above(all.map(|moment| moment.queue as f64)),
        |moments| {
            let area = seconds(moments).map(|(x, moment)| (x, 0.0, moment.queue as f64));
            vec![Shape::Area("queue", area.collect())]
        },
    ));
    html.push_str("<h3>What became of the riders’ requests, a second</h3>\n");
    html.push_str(&legend(&[
        ("served", "served"),
        ("failed", "failed or never answered"),
        ("refused", "refused with 429"),
    ]));
    let most = |moment: &Moment| (moment.served + moment.failed + moment.refused) as f64;
    html.push_str(&row(
        phases,
        |all| Scale::above(all.map(most)),
        |moments| {
            let area = |from: fn(&Moment) -> u64, to: fn(&Moment) -> u64| {
                seconds(moments).map(|(x, moment)| (x, from(moment) as f64, to(moment) as f64)).collect()
            };
            vec![
                Shape::Area("refused", area(|it| it.served + it.failed, |it| it.served + it.failed + it.refused)),
                Shape::Area("failed", area(|it| it.served, |it| it.served + it.failed)),
                Shape::Area("served", area(|_| 0, |it| it.served)),
            ]
        },
    ));
    html
}

/// The middles of the seconds.
fn seconds(moments: &[Moment]) -> impl Iterator<Item = (f64, &Moment)> {
    moments.iter().enumerate().map(|(second, moment)| (second as f64 + 0.5, moment))
}

/// A picture for each phase, all by one scale.
fn row(
    phases: &[Found],
    scale: impl Fn(&mut dyn Iterator<Item = &Moment>) -> Scale,
    shapes: impl Fn(&[Moment]) -> Vec<Shape>,
) -> String {
    let scale = scale(&mut phases.iter().flat_map(|found| &found.timeline));
    let mut html = "<div class=\"row\">\n".to_owned();
    for found in phases {
        let short = SHORT[found.phase - 1];
        let label = format!("phase {}: {short}", found.phase);
        let right = found.timeline.len().max(1) as f64;
        let plot = Plot { label, wide: 1.0, right, below: "s", scale, shapes: shapes(&found.timeline) };
        let _ = writeln!(html, "<figure>{}<figcaption>{} {short}</figcaption></figure>", plot.svg(), found.phase);
    }
    html + "</div>\n"
}

fn legend(entries: &[(&str, &str)]) -> String {
    let entry = |(class, text): &(&str, &str)| format!("<span><i class=\"{class}\"></i>{text}</span>");
    format!("<p class=\"legend\">{}</p>\n", entries.iter().map(entry).collect::<String>())
}

/// Who got how much, and how much of it beyond the limits.
fn shares(phases: &[Found]) -> String {
    let most = phases.iter().flat_map(|found| &found.crowd.curve).map(|rides| f64::from(*rides));
    let line = |found: &Found| {
        let last = found.crowd.curve.len().saturating_sub(1).max(1) as f64;
        let points = found.crowd.curve.iter().enumerate();
        let points = points.map(|(place, rides)| (place as f64 / last * 100.0, Some(f64::from(*rides)))).collect();
        Shape::Line(CLASSES[found.phase - 1], points)
    };
    let label = "rides of each rider, from the one with the fewest to the one with the most".to_owned();
    let scale = Scale::above(most);
    let shapes = phases.iter().map(line).collect();
    let plot = Plot { label, wide: 2.0, right: 100.0, below: "% of the riders", scale, shapes };
    let names: Vec<_> = phases.iter().map(|found| (CLASSES[found.phase - 1], SHORT[found.phase - 1])).collect();
    let (legend, svg, bars) = (legend(&names), plot.svg(), bars(phases));
    format!(
        "<h2>Who got how much</h2>\n<div class=\"row two\">\n<figure><h3>Rides of each rider, sorted</h3>{legend}{svg}</figure>\n\
         <figure><h3>The most that one had of its limit on ride requests</h3>{bars}</figure>\n</div>\n"
    )
}

/// The factor by which each phase let somebody have more than the limit.
fn bars(phases: &[Found]) -> String {
    let most = phases.iter().filter_map(factor).fold(1.0, f64::max);
    let mut html = "<div class=\"bars\">\n".to_owned();
    for found in phases {
        let (name, class) = (SHORT[found.phase - 1], CLASSES[found.phase - 1]);
        let (share, told) = match factor(found) {
            Some(factor) => {
                let beyond = whole(found.overshoot());
                (factor / most * 100.0, format!("{}, {beyond} requests beyond it", times(factor)))
            }
            None => (0.0, "there is no limit".to_owned()),
        };
        let _ = writeln!(
            html,
            "<div><span class=\"name\">{} {name}</span><span class=\"bar {class}\" style=\"width:{share:.1}%\"></span>\
             <span class=\"told\">{told}</span></div>",
            found.phase
        );
    }
    html + "</div>\n"
}

fn factor(found: &Found) -> Option<f64> {
    found.limit("ride-request").map(|kept| kept.factor)
}

fn outro(report: &Report) -> String {
    let line = |name: &str, value: &str| format!("<dt>{name}</dt><dd>{}</dd>\n", escaped(value));
    let mut html = "<h2>About this run</h2>\n<dl>\n".to_owned();
    html.push_str(&line("command", &report.command));
    html.push_str(&line("date", &report.date));
    html.push_str(&line("seed", &report.seed.to_string()));
    html.push_str(&line("tidegate", report.version));
    html.push_str(&line("store", &report.store));
    html.push_str(&line("time-out of riders", &format!("{} s", report.time_out_seconds)));
    html.push_str(&line("processors", &report.processors.to_string()));
    for found in &report.phases {
        let busy = |cpu: Busy| format!("{:.0} % busy, {:.0} % with others", cpu.share * 100.0, cpu.others * 100.0);
        let cpu = found.load.cpu.map_or("unknown".to_owned(), busy);
        let (late, staff) = (found.load.late.p99, found.load.late_staff.p99);
        let told = format!(
            "processors {cpu}; 99 % of the requests of riders left within {late:.1} ms of when they were due, of drivers within \
             {staff:.0} ms"
        );
        html.push_str(&line(&format!("load of phase {}", found.phase), &told));
    }
    html + "</dl>\n"
}
