//! `docs/cli.md`: its commands print what stands there.

use crate::shell::Shell;

#[test]
fn the_page_shows_what_the_commands_print() {
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

/// Some milliseconds pass between the first request and the last.
fn without_millis(text: &str) -> String {
    let mut parts = text.split("\"retry_after_ms\":");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + "\"retry_after_ms\":" + part.trim_start_matches(|c: char| c.is_ascii_digit()))
}
