//! A limit of a file: its rate, algorithm, window and settings.

use tidegate::limits::LimitError;
use tidegate::rules::OnOverload;
use tidegate::spi::{Gate, KeyStem, Role};
use tidegate::{Limit, OnFailure, Rate as Refill, Rule};
use tidegate_rules::parse_duration;
use tidegate_rules::yaml::{Node, NodeKind};

use super::super::descriptor_tree::{ConfiguredLimit, CounterNaming, RequestRate};
use super::super::messages::Unit;
use super::super::metadata;
use super::super::unit::{self, UnitWindows};
use super::fields::YamlFields;
use super::{ALGORITHM, COUNT_REFUSED, ConfigReader, DescriptorPath, LIMIT_KEYS, LimitSettings, MULTIPLIER, WINDOW};

/// Slices of a sliding window. Ten divide every unit evenly.
const SLIDING_WINDOW_SLICES: u64 = 10;

/// The any-of group of all quotas of a request.
pub(in super::super) const QUOTA_ROLE: Role = Role::AnyOf(0);

impl ConfigReader<'_> {
    pub(super) fn limit(
        &mut self,
        node: Node,
        path: &DescriptorPath,
        settings: LimitSettings,
    ) -> Option<ConfiguredLimit> {
        let mut fields = self.fields(node, "a limit with `unit` and `requests_per_unit`", LIMIT_KEYS)?;
        let name = self.text_of(&mut fields, "name");
        let replaces = self.replaces(fields.take("replaces"), &name);
        let owner = path.owner(self.path_hasher);
        let counts_denied = fields.has(COUNT_REFUSED).then(|| self.flag(&mut fields, COUNT_REFUSED));
        let mut metadata = self.metadata(fields.take("metadata"));
        if let Some(inherited) = settings.metadata {
            metadata::merge(metadata.get_or_insert_default(), &inherited);
        }
        let rate = if self.flag(&mut fields, "unlimited") {
            if let Some(unit) = fields.take("unit").or_else(|| fields.take(WINDOW)) {
                self.error(unit.span.start, "an `unlimited` limit has no unit; remove one of the two");
            }
            None
        } else {
            let (requests, unit, limit) = self.rate(&mut fields)?;
            let role = role(self.options.strict, settings.shadow, settings.quota || self.options.quota);
            let near_threshold = self.options.near_threshold(requests);
            Some(RequestRate { requests, unit, near_threshold, gate: gate(&path.full_key, &owner, limit, role) })
        };
        let counter_naming = if settings.detailed || path.has_value_metric {
            CounterNaming::PerValue { all: settings.detailed }
        } else {
            CounterNaming::PerLimit(self.options.stats.limit_counters(path.names.clone()))
        };
        Some(ConfiguredLimit {
            full_key: path.full_key.clone(),
            owner,
            name,
            replaces,
            shadow: settings.shadow,
            quota: settings.quota,
            counts_denied,
            metadata,
            counter_naming,
            rate,
        })
    }

    fn rate(&mut self, fields: &mut YamlFields) -> Option<(u32, Unit, Limit)> {
        let window = self.window(fields);
        let offset = fields.offset_of("requests_per_unit");
        let requests = match fields.take("requests_per_unit") {
            None => {
                self.warning(offset, "without `requests_per_unit` the limit is 0, which denies everything");
                Some(0)
            }
            Some(node) => self.number(&node, "requests_per_unit", 0),
        };
        let offset = fields.offset_of(ALGORITHM);
        let algorithm = self.text_of(fields, ALGORITHM);
        let ((unit, windows), requests) = (window?, requests?);
        match build_limit(&algorithm, requests, windows) {
            Some(Ok(limit)) => Some((requests, unit, limit)),
            Some(Err(error)) => {
                self.error(offset, error.to_string());
                None
            }
            None => {
                let algorithms = "fixed_window, token_bucket, sliding_log or sliding_window";
                self.error(offset, format!("unknown algorithm {algorithm:?}; write {algorithms}"));
                None
            }
        }
    }

    /// The unit to report and the window to count in, from `unit`, `unit_multiplier` and `window`.
    fn window(&mut self, fields: &mut YamlFields) -> Option<(Unit, UnitWindows)> {
        let multiplier = fields.take(MULTIPLIER);
        let offset = fields.offset_of("unit");
        let Some(window) = fields.take(WINDOW).filter(|node| !matches!(node.kind, NodeKind::Null)) else {
            let unit = self.unit(fields, offset)?;
            let single = Some((unit, UnitWindows::from_unit(unit, self.options.strict)?));
            let Some(node) = multiplier else { return single };
            let factor = self.number(&node, MULTIPLIER, 1)?;
            if factor == 1 {
                return single;
            }
            if !unit::can_be_multiplied(unit) {
                self.error(node.span.start, "months and years differ in length; write a `window`, such as 90d");
                return None;
            }
            let span = unit::duration(unit)?.checked_mul(factor)?;
            return Some((unit::from_window(span.into()), UnitWindows::from_span(span)));
        };
        if fields.take("unit").is_some() || multiplier.is_some() {
            self.error(window.span.start, "a limit has either a `unit` or a `window`; remove one of the two");
            return None;
        }
        match parse_duration(&self.text(&window)?) {
            Ok(span) => Some((unit::from_window(span.into()), UnitWindows::from_span(span))),
            Err(problem) => {
                self.error(window.span.start, problem);
                None
            }
        }
    }

    fn unit(&mut self, fields: &mut YamlFields, offset: usize) -> Option<Unit> {
        let text = self.text_of(fields, "unit");
        let unit = unit::from_name(&text);
        if unit.is_none() {
            let units = "second, minute, hour, day, week, month or year";
            let problem =
                if text.is_empty() { "the limit has no unit".to_owned() } else { format!("unknown unit {text:?}") };
            self.error(offset, format!("{problem}; write {units}"));
        }
        unit
    }

    fn replaces(&mut self, list: Option<Node>, own: &str) -> Vec<String> {
        let mut names = Vec::new();
        for item in self.list(list) {
            let Some(mut fields) = self.fields(item, "a map with the `name` of a limit", &["name"]) else { continue };
            let name = self.text_of(&mut fields, "name");
            if name.is_empty() {
                self.error(fields.offset, "the limit to replace has no name; add `name: NAME`");
            } else if name == own {
                self.error(fields.offset, "the limit replaces itself; name another limit");
            } else {
                names.push(name);
            }
        }
        names
    }
}

/// The role of a limit in a plan. In strict mode each limit is enforced on its own, and the statuses are combined afterwards.
pub(in super::super) const fn role(strict: bool, shadow: bool, quota: bool) -> Role {
    match (strict, shadow, quota) {
        (false, true, _) => Role::Shadow,
        (false, false, true) => QUOTA_ROLE,
        _ => Role::Enforced,
    }
}

/// A gate that fails closed: these files have no failure policy, so the caller gets an error and Envoy's own policy applies.
pub(in super::super) fn gate(full_key: &str, owner: &str, limit: Limit, role: Role) -> Gate {
    let stem = KeyStem::for_rule(owner, &limit, "");
    // A failure of the store is an error, which Envoy decides about; an overload of this instance is no failure.
    let rule = Rule::new(full_key, limit).with_on_failure(OnFailure::Closed).with_on_overload(OnOverload::Local);
    Gate::new(rule.with_per(["descriptor"]), "", limit).with_role(role).with_stem(stem)
}

/// Builds a limit by the name of its algorithm; `None` if the name is unknown.
pub(in super::super) fn build_limit(
    algorithm: &str,
    requests: u32,
    windows: UnitWindows,
) -> Option<Result<Limit, LimitError>> {
    let (amount, UnitWindows { fixed, span }) = (u64::from(requests), windows);
    Some(match algorithm {
        // A token bucket cannot have the rate 0; a fixed window of 0 denies everything as well.
        "token_bucket" if requests > 0 => {
            Refill::new(amount, span).and_then(|refill| Limit::token_bucket(amount, refill))
        }
        "" | "fixed_window" | "token_bucket" => Limit::fixed_window(amount, fixed),
        "sliding_log" => Limit::sliding_log(amount, span),
        "sliding_window" => Limit::sliding_window(amount, span, SLIDING_WINDOW_SLICES),
        _ => return None,
    })
}
