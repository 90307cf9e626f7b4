//! The results as JSON: one object per line, with times in milliseconds from the start.

use std::time::Duration;

use crate::scenario::Lane;

pub(crate) fn lines(sent: &[Duration], lanes: &[Lane]) -> String {
    let sent = format!("{{\"sent_ms\":{:?}}}\n", millis(sent));
    lanes.iter().map(line).fold(sent, |lines, line| lines + &line)
}

/// Lists of numbers, and names that need no escaping: for both, `{:?}` writes JSON.
fn line(lane: &Lane) -> String {
    let [passed, held, denied] = [&lane.passed, &lane.held, &lane.denied].map(|moments| millis(moments));
    let retry = lane.first_retry.map_or("null".into(), |retry| retry.as_millis().to_string());
    format!(
        "{{\"limit\":{:?},\"passed_ms\":{passed:?},\"held_ms\":{held:?},\"denied_ms\":{denied:?},\
         \"busiest_second\":{},\"first_retry_ms\":{retry}}}\n",
        lane.limit,
        lane.busiest_second(),
    )
}

fn millis(moments: &[Duration]) -> Vec<u128> {
    moments.iter().map(Duration::as_millis).collect()
}
