//! The report page in a real browser.

use std::path::Path;
use std::process::Command;

use crate::surge::WorkDir;

/// Opens a page in Chromium, and returns its DOM and log.
fn open_in_browser(dir: &WorkDir, page: &Path, more: &[&str]) -> (String, String) {
    let url = format!("file://{}", page.display());
    let mut command = Command::new("chromium");
    let headless = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"];
    let logging = ["--enable-logging=stderr", "--v=0", "--host-resolver-rules=MAP * ~NOTFOUND"];
    let profile = format!("--user-data-dir={}", dir.path("profile").display());
    command.args(headless).args(logging).arg(profile).args(more).arg(url).current_dir(page.parent().unwrap());
    let output = command.output().unwrap_or_else(|error| {
        panic!("chromium does not start ({error}); `make tools-prove` installs it, or install the Debian package `chromium`")
    });
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}", text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_browser_shows_all_plots_and_tables_without_errors() {
    let dir = WorkDir::new();
    let (code, out, err) = dir.run(
        "--users 20 --instances 2 --flood 50 --seconds 2 --seed 41 --report page.html --picture picture.svg --json",
    );
    // A busy machine may miss a goal, and the page is complete then, too.
    assert!(matches!(code, Some(0 | 1)), "{err}");
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    let page = dir.path("page.html");

    let (dom, log) = open_in_browser(&dir, &page, &["--dump-dom"]);
    assert!(!log.contains("CONSOLE"), "{log}");
    assert_eq!(dom.matches("<svg ").count(), 10, "the picture, two for each phase, and one for the riders");
    for label in ["phase 1: no limits", "phase 4: shared + one for all", "rides of each rider"] {
        assert!(dom.contains(&format!("aria-label=\"{label}")), "{label}");
    }
    for class in ["line p99", "line median", "area served", "area denied", "line four", "bar two"] {
        assert!(dom.contains(&format!("class=\"{class}\"")), "{class}");
    }
    assert!(!dom.contains("NaN") && !dom.contains("inf "), "every point is a number");
    assert_eq!(dom.matches("<table>").count(), 5);
    assert_eq!(dom.matches("<li class=").count(), 13, "every phase and every goal");
    let requests = report["phases"][3]["endpoints"][5]["requests"].to_string();
    assert!(dom.contains(&format!("<td>drivers/location</td><td>{requests}</td>")), "{requests}");
    for text in ["<dd>41</dd>", "<dd>tidegate-lab surge --users 20 ", report["date"].as_str().unwrap()] {
        assert!(dom.contains(text), "{text}");
    }
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(
        !html.contains("http://") && !html.contains("https://") && !html.contains("<script"),
        "the page is self-contained"
    );

    assert_opens_with_conclusion_and_picture(&html);
    let file = std::fs::read_to_string(dir.path("picture.svg")).unwrap();
    assert!(file.starts_with("<svg xmlns=") && file.ends_with("</svg>\n"), "{file}");
    assert_fits(&dir, &html, 420);

    let picture = dir.path("page.png");
    open_in_browser(&dir, &page, &[&format!("--screenshot={}", picture.display()), "--window-size=1400,2000"]);
    let picture = std::fs::read(picture).unwrap();
    assert!(picture.starts_with(b"\x89PNG") && picture.len() > 20_000, "{} bytes", picture.len());
}

/// Checks that the conclusion comes first, then the picture, the phases in words, and the tables.
fn assert_opens_with_conclusion_and_picture(html: &str) {
    let order =
        ["<p class=\"conclusion\">Without limits, ", "<svg class=\"picture\"", "<ol class=\"phases\">", "<table>"];
    let positions = order.map(|text| html.find(text).unwrap_or_else(|| panic!("no {text}")));
    assert!(positions.is_sorted(), "{positions:?}");
}

/// Checks that the page has no horizontal scroll bar in a window of this width: tables scroll by themselves.
fn assert_fits(dir: &WorkDir, html: &str, width: u32) {
    let source = html.replace('&', "&amp;").replace('"', "&quot;");
    let wrapper = format!(
        "<!doctype html><iframe style=\"border:0;width:{width}px;height:2000px\" srcdoc=\"{source}\"></iframe><script>\
         onload = () => {{\
           const page = document.querySelector('iframe').contentDocument, root = page.documentElement;\
           const tables = [...page.querySelectorAll('.wide')].filter(it => it.scrollWidth > it.clientWidth).length;\
           document.body.dataset.found = root.clientWidth + ' ' + root.scrollWidth + ' ' + tables;\
         }}</script>"
    );
    let path = dir.path("narrow.html");
    std::fs::write(&path, wrapper).unwrap();
    let (dom, log) = open_in_browser(dir, &path, &["--dump-dom", "--hide-scrollbars"]);
    let found = dom.split("data-found=\"").nth(1).and_then(|rest| rest.split('"').next());
    let found: Vec<u32> = found.unwrap_or_else(|| panic!("{log}")).split(' ').map(|it| it.parse().unwrap()).collect();
    assert_eq!(found[..2], [width, width], "the page is wider than its window");
    assert!(found[2] >= 4, "the tables by endpoint are wider than the window, and scroll");
}
