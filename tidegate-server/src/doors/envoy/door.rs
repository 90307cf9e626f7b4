//! `EnvoyArgs` and `Envoy`: the flags of Envoy's rate limit service, and the service that they configure.

use std::path::PathBuf;
use std::time::Duration;

use axum::Router;
use clap::Args;
use http::HeaderName;
use tidegate::Secret;
use tidegate_tower::Handle;

use crate::args::flag_values::{millis, share};
use crate::command::failure::Failure;
use crate::doors::envoy::{ConfigHandle, EnvoyConfig, EnvoyOptions, EnvoyService, Stats, router, router_with_refunds};
use crate::engine::instrumented_store::InstrumentedStore;

/// The flags. Most correspond to a variable of Envoy's reference server, which their help names.
#[derive(Args, Clone)]
#[allow(clippy::struct_excessive_bools, clippy::struct_field_names, reason = "each field is a flag, and named like it")]
pub(crate) struct EnvoyArgs {
    /// Limits for Envoy's rate limit service in the format of its reference server, instead of the rule file
    #[arg(long, value_name = "DIR", env = "TIDEGATE_ENVOY_CONFIG", help_heading = "Envoy")]
    pub(crate) envoy_config: Option<PathBuf>,
    /// Behave like the reference server: hits of denied requests count
    #[arg(long, env = "TIDEGATE_ENVOY_STRICT", help_heading = "Envoy")]
    pub(crate) envoy_strict: bool,
    /// Let every request pass; only the statuses report exceeded limits (`SHADOW_MODE`)
    #[arg(long, env = "TIDEGATE_ENVOY_SHADOW", help_heading = "Envoy")]
    pub(crate) envoy_shadow: bool,
    /// Make every limit of --envoy-config a quota: refuse requests that are over all of them (`QUOTA_MODE`)
    #[arg(long, env = "TIDEGATE_ENVOY_QUOTA", help_heading = "Envoy")]
    pub(crate) envoy_quota: bool,
    /// Send dynamic metadata with each response (`RESPONSE_DYNAMIC_METADATA`)
    #[arg(long, env = "TIDEGATE_ENVOY_METADATA", help_heading = "Envoy")]
    pub(crate) envoy_metadata: bool,
    /// Accept `is_negative_hits` in /json: whoever reaches --http can then give back the hits of anybody
    #[arg(long, env = "TIDEGATE_ENVOY_JSON_REFUNDS", help_heading = "Envoy")]
    pub(crate) envoy_json_refunds: bool,
    /// Allow several files of --envoy-config for one domain (`MERGE_DOMAIN_CONFIG`)
    #[arg(long, env = "TIDEGATE_ENVOY_MERGE_DOMAINS", help_heading = "Envoy")]
    pub(crate) envoy_merge_domains: bool,
    /// Maximum time for a decision of Envoy's rate limit service; the deadline of a call, less 5 ms, applies if
    /// it is sooner [default: 15ms, or --store-budget if that is given and larger]
    #[arg(long, value_name = "DURATION", env = "TIDEGATE_ENVOY_BUDGET", value_parser = millis(1..=60_000), help_heading = "Envoy")]
    pub(crate) envoy_budget: Option<Duration>,
    /// Hits that use at least this share of a limit count as near it in the metrics (`NEAR_LIMIT_RATIO`)
    #[arg(long, value_name = "SHARE", env = "TIDEGATE_ENVOY_NEAR_LIMIT", default_value_t = 0.8, value_parser = share, help_heading = "Envoy")]
    pub(crate) envoy_near_limit: f64,
    /// Add header fields to the responses of --envoy-config (`LIMIT_RESPONSE_HEADERS_ENABLED`)
    #[arg(long, env = "TIDEGATE_ENVOY_HEADERS", help_heading = "Envoy")]
    pub(crate) envoy_headers: bool,
    /// Name of the field with the limit (`LIMIT_LIMIT_HEADER`)
    #[arg(long, value_name = "NAME", env = "TIDEGATE_ENVOY_LIMIT_HEADER", default_value = "RateLimit-Limit", value_parser = field, help_heading = "Envoy")]
    pub(crate) envoy_limit_header: String,
    /// Name of the field with the remaining amount (`LIMIT_REMAINING_HEADER`)
    #[arg(long, value_name = "NAME", env = "TIDEGATE_ENVOY_REMAINING_HEADER", default_value = "RateLimit-Remaining", value_parser = field, help_heading = "Envoy")]
    pub(crate) envoy_remaining_header: String,
    /// Name of the field with the seconds until the limit resets (`LIMIT_RESET_HEADER`)
    #[arg(long, value_name = "NAME", env = "TIDEGATE_ENVOY_RESET_HEADER", default_value = "RateLimit-Reset", value_parser = field, help_heading = "Envoy")]
    pub(crate) envoy_reset_header: String,
}

/// Envoy's rate limit service as the flags describe it.
pub(crate) struct Envoy {
    arguments: EnvoyArgs,
    files: Option<Files>,
    stats: Stats,
    max_decision_time: Duration,
}

/// A configuration in the format of the reference server.
struct Files {
    folder: PathBuf,
    options: EnvoyOptions,
    config: ConfigHandle,
}

impl EnvoyArgs {
    /// Warns of flags that have no effect, since there are no files for them.
    fn warn(&self) {
        let flags = [
            (self.envoy_quota, "--envoy-quota"),
            (self.envoy_merge_domains, "--envoy-merge-domains"),
            (self.envoy_headers, "--envoy-headers"),
        ];
        for (_, flag) in flags.into_iter().filter(|(given, _)| *given && self.envoy_config.is_none()) {
            tracing::warn!(target: "tidegate::server", "{flag} has no effect without --envoy-config");
        }
    }

    fn options(&self, secret: &Secret, stats: &Stats) -> EnvoyOptions {
        let options = EnvoyOptions::default()
            .with_strict(self.envoy_strict)
            .with_quota(self.envoy_quota)
            .with_merge_domains(self.envoy_merge_domains)
            .with_near_limit(self.envoy_near_limit as f32)
            .with_secret(secret)
            .with_stats(stats);
        if !self.envoy_headers {
            return options;
        }
        options.with_headers(&self.envoy_limit_header, &self.envoy_remaining_header, &self.envoy_reset_header)
    }
}

impl Envoy {
    /// Loads the configuration, if a flag names one and the service is not off.
    pub(crate) fn open(
        arguments: &EnvoyArgs,
        is_on: bool,
        max_decision_time: Duration,
        secret: &Secret,
    ) -> Result<Self, Failure> {
        if is_on {
            arguments.warn();
        }
        let stats = Stats::default();
        let files = match arguments.envoy_config.as_ref().filter(|_| is_on) {
            None => None,
            Some(folder) => {
                let options = arguments.options(secret, &stats);
                let config = EnvoyConfig::load(folder, &options);
                let config = config.map_err(|errors| Failure::usage(format!("--envoy-config: {errors}")))?;
                log_warnings(&config);
                Some(Files { folder: folder.clone(), options, config: ConfigHandle::new(config) })
            }
        };
        Ok(Self { arguments: arguments.clone(), files, stats, max_decision_time })
    }

    /// The service, by its own configuration or by the rules of the limiter.
    pub(crate) fn service(&self, handle: Handle<InstrumentedStore>) -> EnvoyService<InstrumentedStore> {
        let limits = match &self.files {
            Some(files) => EnvoyService::from_config(handle, files.config.clone()),
            None => EnvoyService::from_rules(handle),
        };
        let EnvoyArgs { envoy_strict, envoy_shadow, envoy_metadata, .. } = self.arguments;
        let limits = limits.with_strict(envoy_strict).with_shadow(envoy_shadow).with_metadata(envoy_metadata);
        limits.with_max_decision_time(self.max_decision_time).with_stats(&self.stats)
    }

    /// Its pages at the address of the check API.
    pub(crate) fn router(&self, service: EnvoyService<InstrumentedStore>) -> Router {
        if self.arguments.envoy_json_refunds { router_with_refunds(service) } else { router(service) }
    }

    /// Reads the configuration again, if there is one.
    pub(crate) fn read(&self) -> Result<Option<EnvoyConfig>, String> {
        let Some(files) = &self.files else { return Ok(None) };
        EnvoyConfig::load(&files.folder, &files.options).map(Some).map_err(|errors| errors.to_string())
    }

    /// Replaces the configuration.
    pub(crate) fn replace(&self, config: EnvoyConfig) {
        let Some(files) = &self.files else { return };
        log_warnings(&config);
        files.config.replace(config);
    }

    /// The limits of the configuration as text, if there is one.
    pub(crate) fn limit_lines(&self) -> Option<String> {
        Some(self.files.as_ref()?.config.current()?.lines().join("\n"))
    }

    /// The folder of the configuration, if there is one.
    pub(crate) fn folder(&self) -> Option<&PathBuf> {
        self.files.as_ref().map(|files| &files.folder)
    }

    /// The counters of the reference server.
    pub(crate) const fn stats(&self) -> &Stats {
        &self.stats
    }
}

fn log_warnings(config: &EnvoyConfig) {
    for warning in config.warnings() {
        tracing::warn!(target: "tidegate::server", "{warning}");
    }
}

fn field(text: &str) -> Result<String, String> {
    match HeaderName::from_bytes(text.as_bytes()) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err("this is not the name of a header field; use letters, digits and `-`".to_owned()),
    }
}
