//! The commands in `docs/cli.md` and `docs/testing-limits.md` print what the pages show.

use crate::cli::shell::Shell;

#[test]
fn the_cli_page_shows_the_real_output() {
    let page = include_str!("../../../docs/cli.md");
    let shell = Shell::with_examples();
    let blocks = |fence: &'static str| -> Vec<&str> {
        page.split(fence).skip(1).map(|part| part.split("```").next().unwrap()).collect()
    };
    shell.write("wrong.yaml", blocks("```yaml\n")[0]);
    let blocks = blocks("```console\n");
    assert!(blocks.len() >= 6, "only {} blocks were found", blocks.len());
    for block in blocks {
        let mut printed = String::new();
        for line in block.lines().filter(|line| line.starts_with("$ ")) {
            printed = printed + line + "\n" + &shell.sh(&format!("{} 2>&1", &line[2..])).out;
        }
        assert_eq!(without_millis(&printed), without_millis(block));
    }
}

#[test]
fn the_testing_page_shows_the_real_output() {
    let page = include_str!("../../../docs/testing-limits.md");
    let blocks: Vec<&str> = page.split("```").skip(1).step_by(2).collect();
    let [rules, tests, passing, failing] = blocks[..4] else { panic!("the page has fewer than four code blocks") };
    let body = |block: &'static str, fence: &str| block.strip_prefix(fence).unwrap();
    let shell = Shell::new();
    shell.write("rules.test.yaml", body(tests, "yaml\n"));
    for (capacity, shown, code) in [("5", passing, 0), ("8", failing, 1)] {
        let rules = body(rules, "yaml\n").replace("capacity: 5", &format!("capacity: {capacity}"));
        shell.write("rules.yaml", rules);
        let (line, printed) = body(shown, "text\n$ ").split_once('\n').unwrap();
        let output = shell.sh(line);
        assert_eq!((output.code, output.out.as_str(), output.err.as_str()), (Some(code), printed, ""));
    }
}

/// Removes the milliseconds that depend on the time between requests.
fn without_millis(text: &str) -> String {
    let mut parts = text.split("\"retry_after_ms\":");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + "\"retry_after_ms\":" + part.trim_start_matches(|c: char| c.is_ascii_digit()))
}
