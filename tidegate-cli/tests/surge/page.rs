//! The page, in a real browser.

use std::path::Path;
use std::process::Command;

use crate::Place;

/// What Chromium makes of a page: its elements, after everything ran, and what it had to say.
fn opened(place: &Place, page: &Path, more: &[&str]) -> (String, String) {
    let url = format!("file://{}", page.display());
    let mut command = Command::new("chromium");
    let quiet = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"];
    let told = ["--enable-logging=stderr", "--v=0", "--host-resolver-rules=MAP * ~NOTFOUND"];
    let profile = format!("--user-data-dir={}", place.path("profile").display());
    command.args(quiet).args(told).arg(profile).args(more).arg(url).current_dir(page.parent().unwrap());
    let output = command.output().unwrap_or_else(|error| {
        panic!("chromium does not start ({error}); `make tools` installs it, or install the Debian package `chromium`")
    });
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}", text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_browser_shows_plots_and_numbers_and_has_nothing_to_complain_about() {
    let place = Place::new();
    let ran = place.run("--users 20 --instances 2 --seconds 2 --seed 41 --report page.html --json");
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let found: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let page = place.path("page.html");

    let (dom, said) = opened(&place, &page, &["--dump-dom"]);
    assert!(!said.contains("CONSOLE"), "{said}");
    assert_eq!(dom.matches("<svg ").count(), 13, "three for each phase, and one for the riders");
    for label in ["phase 1: no limits", "phase 4: shared + capacity", "rides of each rider"] {
        assert!(dom.contains(&format!("aria-label=\"{label}")), "{label}");
    }
    for class in ["line p99", "line median", "area queue", "area refused", "line four", "bar two"] {
        assert!(dom.contains(&format!("class=\"{class}\"")), "{class}");
    }
    assert!(!dom.contains("NaN") && !dom.contains("inf "), "every point is a number");
    assert_eq!(dom.matches("<table>").count(), 5);
    assert_eq!(dom.matches("<li class=").count(), 7, "every aim");
    let requests = found["phases"][3]["endpoints"][5]["requests"].to_string();
    assert!(dom.contains(&format!("<td>drivers/location</td><td>{requests}</td>")), "{requests}");
    for words in ["<dd>41</dd>", "<dd>tidegate surge --users 20 ", found["date"].as_str().unwrap()] {
        assert!(dom.contains(words), "{words}");
    }
    let text = std::fs::read_to_string(&page).unwrap();
    assert!(!text.contains("http://") && !text.contains("https://") && !text.contains("<script"), "all of it is in it");

    let picture = place.path("page.png");
    opened(&place, &page, &[&format!("--screenshot={}", picture.display()), "--window-size=1400,2000"]);
    let picture = std::fs::read(picture).unwrap();
    assert!(picture.starts_with(b"\x89PNG") && picture.len() > 20_000, "{} bytes", picture.len());
}
