//! A limit of a file: how much in how much time, of which kind, and what else is said about it.

use tidegate::spi::{Gate, KeyStem, Role};
use tidegate::{Limit, LimitError, OnFailure, Rate as Refill};
use tidegate_rules::duration;
use tidegate_rules::yaml::{Kind, Node};

use super::super::lookup::{Configured, Metric, Rate};
use super::super::metadata;
use super::super::pb::Unit;
use super::super::unit::{self, Windows};
use super::fields::Fields;
use super::{ALGORITHM, About, COUNT_REFUSED, MULTIPLIER, OF_LIMIT, Path, Reader, WINDOW};

/// Ten slices divide every unit evenly.
const SLICES: u64 = 10;

/// The group of all quota descriptors of a request.
pub(in super::super) const QUOTAS: Role = Role::AnyOf(0);

impl Reader<'_> {
    pub(super) fn limit(&mut self, node: Node, path: &Path, about: About) -> Option<Configured> {
        let mut fields = self.fields(node, "a limit, with `unit` and `requests_per_unit`,", OF_LIMIT)?;
        let name = self.text_of(&mut fields, "name");
        let replaces = self.replaces(fields.take("replaces"), &name);
        let owner = path.owner(self.owners);
        let counts_refused = self.flag(&mut fields, COUNT_REFUSED);
        let mut told = self.metadata(fields.take("metadata"));
        if let Some(more) = about.metadata {
            metadata::merge(told.get_or_insert_default(), &more);
        }
        let rate = if self.flag(&mut fields, "unlimited") {
            if let Some(unit) = fields.take("unit").or_else(|| fields.take(WINDOW)) {
                self.error(unit.span.start, "a limit that is `unlimited` has no unit; take one of the two out");
            }
            None
        } else {
            let (requests, unit, limit) = self.rate(&mut fields)?;
            let role = role(self.options.strict, about.shadow, about.quota || self.options.quota);
            let near = self.options.near(requests);
            Some(Rate { requests, unit, near, gate: gate(&path.full_key, &owner, limit, role) })
        };
        let metric = if about.detailed || path.by_values {
            Metric::OfValues { all: about.detailed }
        } else {
            Metric::OfLimit(self.options.stats.of_limit(path.names.clone()))
        };
        Some(Configured {
            full_key: path.full_key.clone(),
            owner,
            name,
            replaces,
            shadow: about.shadow,
            quota: about.quota,
            counts_refused,
            metadata: told,
            metric,
            rate,
        })
    }

    fn rate(&mut self, fields: &mut Fields) -> Option<(u32, Unit, Limit)> {
        let window = self.window(fields);
        let place = fields.place_of("requests_per_unit");
        let requests = match fields.take("requests_per_unit") {
            None => {
                self.warning(place, "without `requests_per_unit` the limit is 0, which refuses everything");
                Some(0)
            }
            Some(node) => self.number(&node, "requests_per_unit", 0),
        };
        let place = fields.place_of(ALGORITHM);
        let algorithm = self.text_of(fields, ALGORITHM);
        let ((unit, windows), requests) = (window?, requests?);
        match limit_of(&algorithm, requests, windows) {
            Some(Ok(limit)) => Some((requests, unit, limit)),
            Some(Err(error)) => {
                self.error(place, error.to_string());
                None
            }
            None => {
                let known = "fixed_window, token_bucket, sliding_log or sliding_window";
                self.error(place, format!("there is no algorithm {algorithm:?}; write {known}"));
                None
            }
        }
    }

    /// The unit to tell and the window to count in: a unit, some of them, or any window.
    fn window(&mut self, fields: &mut Fields) -> Option<(Unit, Windows)> {
        let multiplier = fields.take(MULTIPLIER);
        let place = fields.place_of("unit");
        let Some(window) = fields.take(WINDOW).filter(|node| !matches!(node.kind, Kind::Null)) else {
            let unit = self.unit(fields, place)?;
            let one = Some((unit, unit::window(unit, self.options.strict)?));
            let Some(node) = multiplier else { return one };
            let times = self.number(&node, MULTIPLIER, 1)?;
            if times == 1 {
                return one;
            }
            if !unit::can_be_multiplied(unit) {
                self.error(node.span.start, "months and years have no one length; write a `window`, such as 90d");
                return None;
            }
            let span = unit::length(unit)?.checked_mul(times)?;
            return Some((unit::of_window(span.into()), Windows::of(span)));
        };
        if fields.take("unit").is_some() || multiplier.is_some() {
            self.error(window.span.start, "a limit has a `unit` or a `window`; take one of the two out");
            return None;
        }
        match duration(&self.text(&window)?) {
            Ok(span) => Some((unit::of_window(span.into()), Windows::of(span))),
            Err(problem) => {
                self.error(window.span.start, problem);
                None
            }
        }
    }

    fn unit(&mut self, fields: &mut Fields, place: usize) -> Option<Unit> {
        let text = self.text_of(fields, "unit");
        let unit = unit::named(&text);
        if unit.is_none() {
            let units = "second, minute, hour, day, week, month or year";
            let found =
                if text.is_empty() { "the limit has no unit".to_owned() } else { format!("{text:?} is no unit") };
            self.error(place, format!("{found}; write {units}"));
        }
        unit
    }

    fn replaces(&mut self, list: Option<Node>, own: &str) -> Vec<String> {
        let mut names = Vec::new();
        for item in self.list(list) {
            let Some(mut fields) = self.fields(item, "the `name` of a limit to replace", &["name"]) else { continue };
            let name = self.text_of(&mut fields, "name");
            if name.is_empty() {
                self.error(fields.place, "a limit to replace is named: write `name: NAME`");
            } else if name == own {
                self.error(fields.place, "the limit replaces itself; name another one");
            } else {
                names.push(name);
            }
        }
        names
    }
}

/// What a limit has to say in a plan. In strict mode every limit counts for itself, and the codes are put together afterwards.
pub(in super::super) const fn role(strict: bool, shadow: bool, quota: bool) -> Role {
    match (strict, shadow, quota) {
        (false, true, _) => Role::Shadow,
        (false, false, true) => QUOTAS,
        _ => Role::Enforced,
    }
}

/// Nothing in these files says what to do while the store fails: Envoy is told, and its own failure mode decides.
pub(in super::super) fn gate(full_key: &str, owner: &str, limit: Limit, role: Role) -> Gate {
    let stem = KeyStem::of_rule(owner, &limit, "");
    Gate::new(full_key, "", limit, role, stem).on_failure(OnFailure::Closed)
}

/// A limit by the name of its kind; none if there is no such kind.
pub(in super::super) fn limit_of(
    algorithm: &str,
    requests: u32,
    windows: Windows,
) -> Option<Result<Limit, LimitError>> {
    let (amount, Windows { fixed, span }) = (u64::from(requests), windows);
    Some(match algorithm {
        // A bucket that never refills is a limit of 0, of whatever kind.
        "token_bucket" if requests > 0 => {
            Refill::new(amount, span).and_then(|refill| Limit::token_bucket(amount, refill))
        }
        "" | "fixed_window" | "token_bucket" => Limit::fixed_window(amount, fixed),
        "sliding_log" => Limit::sliding_log(amount, span),
        "sliding_window" => Limit::sliding_window(amount, span, SLICES),
        _ => return None,
    })
}
