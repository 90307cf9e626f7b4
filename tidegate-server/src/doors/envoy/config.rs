//! `EnvoyConfig`: the limits of a directory of YAML files in the format of the reference server. Immutable once loaded.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate::spi::SubjectHasher;
use tidegate::sync::RwLock;
use tidegate_rules::yaml::{self, SourceFile};

use super::config_reader::{ConfigReader, DomainConfig};
use super::descriptor_tree::{ConfiguredLimit, DescriptorLevel};
use super::options::EnvoyOptions;
use super::problem::{ConfigErrors, ConfigProblem, Position};
use super::stats::Event;

/// Maximum number of files in a directory.
const MAX_FILES: usize = 10_000;

/// Maximum number of files with another extension that warnings name.
const MAX_IGNORED_FILES: usize = 100;

/// The limits of all domains.
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
///     "edge.yaml:2:1: unknown key \"limits\"; remove or correct it"
/// );
/// # Ok::<(), tidegate_server::envoy::ConfigErrors>(())
/// ```
#[derive(Debug)]
pub struct EnvoyConfig {
    domains: HashMap<String, DescriptorLevel>,
    /// Hashes the domain and the entries of a descriptor into a subject.
    pub(super) subjects: SubjectHasher,
    pub(super) options: EnvoyOptions,
    warnings: Vec<ConfigProblem>,
}

/// The current configuration, which can be replaced while the service runs. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct ConfigHandle(Arc<RwLock<Option<Arc<EnvoyConfig>>>>);

/// Loading
impl EnvoyConfig {
    /// Loads all `.yaml` and `.yml` files of a directory, except hidden ones. One invalid file fails the whole load. A
    /// [warning](Self::warnings) names each file with another extension.
    pub fn load(directory: impl AsRef<Path>, options: &EnvoyOptions) -> Result<Self, ConfigErrors> {
        count_load(options, Self::from_directory(directory.as_ref(), options))
    }

    /// Parses texts as if they were files with these names.
    pub fn parse<'f>(
        files: impl IntoIterator<Item = (&'f str, &'f str)>,
        options: &EnvoyOptions,
    ) -> Result<Self, ConfigErrors> {
        count_load(options, Self::from_texts(files, options))
    }

    fn from_directory(directory: &Path, options: &EnvoyOptions) -> Result<Self, ConfigErrors> {
        let failed = |path: &Path, message: String| {
            ConfigErrors::new(vec![ConfigProblem::new(&path.display().to_string(), Position::default(), message)])
        };
        let (paths, ignored) = list_files(directory).map_err(|error| failed(directory, error.to_string()))?;
        if paths.len() > MAX_FILES {
            return Err(failed(
                directory,
                format!("the directory has {} files; the maximum is {MAX_FILES}", paths.len()),
            ));
        }
        let mut texts = Vec::new();
        for path in paths {
            texts.push(SourceFile::load(&path).map_err(|error| failed(&path, error))?);
        }
        let mut config = Self::from_texts(texts.iter().map(|source| (source.name(), source.text())), options)?;
        for path in ignored.iter().take(MAX_IGNORED_FILES) {
            let message = "the file is not read: its name must end in `.yaml` or `.yml`";
            config.warnings.push(ConfigProblem::new(&path.display().to_string(), Position::default(), message));
        }
        if texts.is_empty() {
            let name = directory.display().to_string();
            config.warnings.push(ConfigProblem::new(
                &name,
                Position::default(),
                "the directory has no .yaml file, so nothing is limited",
            ));
        }
        Ok(config)
    }

    fn from_texts<'f>(
        files: impl IntoIterator<Item = (&'f str, &'f str)>,
        options: &EnvoyOptions,
    ) -> Result<Self, ConfigErrors> {
        let (mut domains, mut errors, mut warnings) = (HashMap::new(), Vec::new(), Vec::new());
        let path_hasher = options.secret.hasher(["envoy limit"]);
        for (file, text) in files {
            let (mut file_errors, source) = (Vec::new(), SourceFile::new(file, text));
            match yaml::parse(&source) {
                Ok(root) => {
                    let (errors, warnings, source) = (&mut file_errors, &mut warnings, &source);
                    let mut reader = ConfigReader { source, options, path_hasher: &path_hasher, errors, warnings };
                    if let Some(domain) = reader.read(root) {
                        file_errors.extend(add_domain(&mut domains, source, domain, options.merge_domains));
                    }
                }
                Err(report) => file_errors.extend(ConfigProblem::from_report(&report)),
            }
            file_errors.sort_by_key(|problem| (problem.line(), problem.column()));
            errors.append(&mut file_errors);
        }
        if !errors.is_empty() {
            return Err(ConfigErrors::new(errors));
        }
        let subjects = options.secret.hasher(["envoy descriptor"]);
        Ok(Self { domains, subjects, options: options.clone(), warnings })
    }
}

/// Access
impl EnvoyConfig {
    /// Settings without effect, and other findings that do not prevent a load.
    pub fn warnings(&self) -> &[ConfigProblem] {
        &self.warnings
    }

    /// One line for each limit, sorted.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for level in self.domains.values() {
            level.for_each_limit(&mut |limit| lines.push(format_limit(limit)));
        }
        lines.sort_unstable();
        lines
    }

    pub(super) fn domain(&self, name: &str) -> Option<&DescriptorLevel> {
        self.domains.get(name)
    }

    /// The names of the three response headers, if enabled.
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

    /// Replaces the configuration for all further requests. The counters in the store are kept.
    pub fn replace(&self, config: EnvoyConfig) {
        *self.0.write() = Some(Arc::new(config));
    }

    /// The current configuration; `None` until the first one is set.
    pub fn current(&self) -> Option<Arc<EnvoyConfig>> {
        self.0.read().clone()
    }
}

/// Counts a successful or failed load in the statistics.
fn count_load<T>(options: &EnvoyOptions, result: Result<T, ConfigErrors>) -> Result<T, ConfigErrors> {
    options.stats.count(if result.is_ok() { Event::ConfigLoaded } else { Event::ConfigRejected });
    result
}

/// Adds the domain of a file. Returns an error for each duplicate.
fn add_domain(
    domains: &mut HashMap<String, DescriptorLevel>,
    source: &SourceFile,
    domain: DomainConfig,
    merge: bool,
) -> Vec<ConfigProblem> {
    let problem = |message| ConfigProblem::at(source, domain.offset, message);
    match domains.entry(domain.name) {
        Entry::Vacant(vacant) => {
            vacant.insert(domain.level);
            Vec::new()
        }
        Entry::Occupied(mut existing) if merge => {
            let duplicates = existing.get_mut().merge(domain.level).into_iter();
            let message = |text| format!("another file of the domain has the descriptor {text:?}, too; keep one");
            duplicates.map(|text| problem(message(text))).collect()
        }
        Entry::Occupied(existing) => {
            let name = existing.key();
            vec![problem(format!("another file has the domain {name:?}, too; use each domain in one file"))]
        }
    }
}

/// A limit in the text of the reference server's `/rlconfig`.
fn format_limit(limit: &ConfiguredLimit) -> String {
    let (unit, requests) = limit.rate.as_ref().map_or(("UNKNOWN", 0), |rate| (rate.unit.as_str_name(), rate.requests));
    let unlimited = if limit.rate.is_none() { ", unlimited: true" } else { "" };
    format!(
        "{}: unit={unit} requests_per_unit={requests}, shadow_mode: {}, quota_mode: {}{unlimited}",
        limit.full_key, limit.shadow, limit.quota
    )
}

/// The files to load and those with another extension, which the reference server would load as well; both sorted by name. Links
/// are followed. Hidden entries are skipped: Kubernetes swaps a `ConfigMap` by them.
fn list_files(directory: &Path) -> io::Result<(Vec<PathBuf>, Vec<PathBuf>)> {
    let (mut files, mut ignored) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        let is_yaml = path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
        if !hidden && path.is_file() {
            if is_yaml { files.push(path) } else { ignored.push(path) }
        }
    }
    files.sort_unstable();
    ignored.sort_unstable();
    Ok((files, ignored))
}
