//! `EnvoyConfig`: the limits that a directory of the reference server's YAML files describes. Read once, then only looked at.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use tidegate::spi::SubjectHasher;
use tidegate_rules::yaml::{self, Source};

use super::lookup::{Configured, Level};
use super::options::EnvoyOptions;
use super::problem::{ConfigErrors, ConfigProblem, Place};
use super::stats::Event;
use super::written::{Domain, Reader};

/// The most files in a directory.
const MOST_FILES: usize = 10_000;

/// The limits of every domain.
///
/// ```
/// use tidegate_server::envoy::{EnvoyConfig, EnvoyOptions};
///
/// let file = "
/// domain: edge
/// descriptors:
///   - key: remote_address
///     rate_limit: { unit: second, requests_per_unit: 10 }
/// ";
/// let config = EnvoyConfig::parse([("edge.yaml", file)], &EnvoyOptions::default())?;
/// assert_eq!(
///     config.lines(),
///     ["edge.remote_address: unit=SECOND requests_per_unit=10, shadow_mode: false, quota_mode: false"]
/// );
///
/// let broken = EnvoyConfig::parse([("edge.yaml", "domain: edge\nlimits: []\n")], &EnvoyOptions::default());
/// assert_eq!(
///     broken.unwrap_err().to_string(),
///     "edge.yaml:2:1: there is no key \"limits\"; take it out, or correct it"
/// );
/// # Ok::<(), tidegate_server::envoy::ConfigErrors>(())
/// ```
#[derive(Debug)]
pub struct EnvoyConfig {
    domains: HashMap<String, Level>,
    /// Hashes the domain and the entries of a descriptor.
    pub(super) subjects: SubjectHasher,
    pub(super) options: EnvoyOptions,
    warnings: Vec<ConfigProblem>,
}

/// The configuration that counts now, and the way to put another in its place.
#[derive(Clone, Debug, Default)]
pub struct ConfigHandle(Arc<RwLock<Option<Arc<EnvoyConfig>>>>);

/// Reading
impl EnvoyConfig {
    /// Reads every `.yaml` and `.yml` file of a directory, hidden ones left out. Either all can be used, or none is.
    pub fn load(directory: impl AsRef<Path>, options: &EnvoyOptions) -> Result<Self, ConfigErrors> {
        counted(options, Self::of_directory(directory.as_ref(), options))
    }

    /// Reads texts as if they were files of these names.
    pub fn parse<'f>(
        files: impl IntoIterator<Item = (&'f str, &'f str)>,
        options: &EnvoyOptions,
    ) -> Result<Self, ConfigErrors> {
        counted(options, Self::of_texts(files, options))
    }

    fn of_directory(directory: &Path, options: &EnvoyOptions) -> Result<Self, ConfigErrors> {
        let failed = |path: &Path, message: String| {
            ConfigErrors::new(vec![ConfigProblem::new(&path.display().to_string(), Place::default(), message)])
        };
        let paths = files(directory).map_err(|error| failed(directory, error.to_string()))?;
        if paths.len() > MOST_FILES {
            return Err(failed(directory, format!("there are {} files; at most {MOST_FILES} are read", paths.len())));
        }
        let mut texts = Vec::new();
        for path in paths {
            texts.push(Source::load(&path).map_err(|error| failed(&path, error))?);
        }
        let mut config = Self::of_texts(texts.iter().map(|source| (source.name(), source.text())), options)?;
        if texts.is_empty() {
            let name = directory.display().to_string();
            config.warnings.push(ConfigProblem::new(
                &name,
                Place::default(),
                "no .yaml file here, so nothing is limited",
            ));
        }
        Ok(config)
    }

    fn of_texts<'f>(
        files: impl IntoIterator<Item = (&'f str, &'f str)>,
        options: &EnvoyOptions,
    ) -> Result<Self, ConfigErrors> {
        let (mut domains, mut errors, mut warnings) = (HashMap::new(), Vec::new(), Vec::new());
        let owners = options.secret.hasher(["envoy limit"]);
        for (file, text) in files {
            let (mut found, source) = (Vec::new(), Source::new(file, text));
            match yaml::parse(&source) {
                Ok(root) => {
                    let (errors, warnings, source) = (&mut found, &mut warnings, &source);
                    let domain = Reader { source, options, owners: &owners, errors, warnings }.read(root);
                    if let Some(domain) = domain {
                        found.extend(add(&mut domains, source, domain, options.merge_domains));
                    }
                }
                Err(report) => found.extend(ConfigProblem::of_report(&report)),
            }
            found.sort_by_key(|problem| (problem.line(), problem.column()));
            errors.append(&mut found);
        }
        if !errors.is_empty() {
            return Err(ConfigErrors::new(errors));
        }
        let subjects = options.secret.hasher(["envoy descriptor"]);
        Ok(Self { domains, subjects, options: options.clone(), warnings })
    }
}

/// Looking
impl EnvoyConfig {
    /// What has no effect although it is written, and what else its author should know.
    pub fn warnings(&self) -> &[ConfigProblem] {
        &self.warnings
    }

    /// A line for each limit, in order of the alphabet.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for level in self.domains.values() {
            level.each(&mut |limit| lines.push(line(limit)));
        }
        lines.sort_unstable();
        lines
    }

    pub(super) fn domain(&self, name: &str) -> Option<&Level> {
        self.domains.get(name)
    }

    /// The names of the three fields of answers, if they are wanted.
    pub(super) const fn header_names(&self) -> Option<&[String; 3]> {
        self.options.headers.as_ref()
    }
}

// === impl ConfigHandle ===

impl ConfigHandle {
    /// A handle to this configuration.
    pub fn new(config: EnvoyConfig) -> Self {
        Self(Arc::new(RwLock::new(Some(Arc::new(config)))))
    }

    /// Puts another configuration in place for all requests from now on. What was counted stays counted.
    pub fn replace(&self, config: EnvoyConfig) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(config));
    }

    /// The configuration that counts now; none until there is one.
    pub fn current(&self) -> Option<Arc<EnvoyConfig>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Tells the statistics whether a configuration could be read.
fn counted<T>(options: &EnvoyOptions, read: Result<T, ConfigErrors>) -> Result<T, ConfigErrors> {
    options.stats.count(if read.is_ok() { Event::ConfigLoaded } else { Event::ConfigRefused });
    read
}

/// Takes in what a file says, or tells what it must not say again.
fn add(domains: &mut HashMap<String, Level>, source: &Source, domain: Domain, merge: bool) -> Vec<ConfigProblem> {
    let problem = |message| ConfigProblem::at(source, domain.place, message);
    match domains.entry(domain.name) {
        Entry::Vacant(free) => {
            free.insert(domain.level);
            Vec::new()
        }
        Entry::Occupied(mut known) if merge => {
            let twice = known.get_mut().merge(domain.level).into_iter();
            let again = |text| format!("another file of the domain has the descriptor {text:?}, too; keep one");
            twice.map(|text| problem(again(text))).collect()
        }
        Entry::Occupied(known) => {
            let name = known.key();
            vec![problem(format!("another file has the domain {name:?}, too; give each its own"))]
        }
    }
}

fn line(limit: &Configured) -> String {
    let (unit, requests) = limit.rate.as_ref().map_or(("UNKNOWN", 0), |rate| (rate.unit.as_str_name(), rate.requests));
    let unlimited = if limit.rate.is_none() { ", unlimited: true" } else { "" };
    format!(
        "{}: unit={unit} requests_per_unit={requests}, shadow_mode: {}, quota_mode: {}{unlimited}",
        limit.full_key, limit.shadow, limit.quota
    )
}

/// The files to read, by name. Links are followed; what is hidden is how a `ConfigMap` is swapped, and not ours.
fn files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        let is_yaml = path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml");
        if !hidden && is_yaml && path.is_file() {
            files.push(path);
        }
    }
    files.sort_unstable();
    Ok(files)
}
