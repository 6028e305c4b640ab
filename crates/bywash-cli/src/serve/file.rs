//! The TOML file: options by name, and tables of buckets, keys and service accounts.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use bywash::origin::OriginOptions;
use serde::Deserialize;

use super::gcs_accounts::FileAccount;
use crate::failure::Failure;

/// The permission bit for reads by other users.
const WORLD_READABLE: u32 = 0o004;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct FileSettings {
    pub(super) data_dir: Option<PathBuf>,
    pub(super) memory: Option<String>,
    pub(super) memory_shares: Option<String>,
    pub(super) disk: Option<String>,
    pub(super) disk_daily_writes: Option<String>,
    pub(super) hedge: bool,
    pub(super) idle_age: Option<String>,
    pub(super) idle_exit: Option<String>,
    pub(super) slow_eviction: Option<String>,
    pub(super) slow_eviction_rounds: Option<u32>,
    pub(super) verify: Option<String>,
    pub(super) fetch_folder: Option<PathBuf>,
    pub(super) write_cache: Option<String>,
    pub(super) etag: Option<String>,
    pub(super) at_rest_encryption: Option<String>,
    pub(super) s3_addr: Option<String>,
    pub(super) gcs_addr: Option<String>,
    pub(super) local: Option<PathBuf>,
    pub(super) domain: Vec<String>,
    pub(super) admin_addr: Option<String>,
    pub(super) metrics_addr: Option<String>,
    pub(super) access_key: Option<String>,
    pub(super) secret_key: Option<String>,
    pub(super) anonymous: bool,
    pub(super) no_history: bool,
    pub(super) history_size: Option<String>,
    pub(super) series_age: Option<String>,
    pub(super) series_size: Option<String>,
    pub(super) series_bucket: Option<String>,
    pub(super) tls_cert: Option<PathBuf>,
    pub(super) tls_key: Option<PathBuf>,
    pub(super) insecure_http: bool,
    pub(super) max_connections: Option<usize>,
    pub(super) max_connections_per_address: Option<usize>,
    pub(super) trusted_proxy: Vec<String>,
    pub(super) access_log: Option<String>,
    pub(super) access_log_format: Option<String>,
    pub(super) cluster: Option<String>,
    pub(super) cluster_key_file: Option<PathBuf>,
    pub(super) advertise: Option<String>,
    pub(super) peer_addr: Option<String>,
    pub(super) drain: Option<String>,
    pub(super) bucket: Vec<FileBucket>,
    pub(super) key: Vec<FileKey>,
    pub(super) gcs_account: Vec<FileAccount>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct FileBucket {
    pub(super) name: Option<String>,
    pub(super) url: String,
    pub(super) consistency: Option<String>,
    pub(super) block_size: Option<String>,
    /// A duration.
    pub(super) stale_if_error: Option<String>,
    /// `sha256` or `sha256@N`.
    pub(super) digest_in_key: Option<String>,
    /// `kept` or `while-read`.
    pub(super) cache: Option<String>,
    /// `leave-out` or `error`.
    pub(super) unlistable: Option<String>,
    /// `read` or `read-list` for unsigned requests.
    pub(super) public: Option<String>,
    /// `disk` if the operator's disk encrypts its objects.
    pub(super) at_rest_encryption: Option<String>,
    #[serde(default)]
    pub(super) read_only: bool,
    /// Allowed redirects of a web server: `same-host` or `any`.
    redirects: Option<String>,
    #[serde(default)]
    options: BTreeMap<String, Value>,
    #[serde(default)]
    headers: BTreeMap<String, Value>,
}

impl FileBucket {
    /// A bucket that a local client attaches: its settings and the options of its origin by name and value.
    pub(super) fn attached(url: &str, settings: &[(String, String)]) -> Self {
        let text = |wanted: &str| {
            let found = settings.iter().find(|(name, _)| name == wanted);
            found.map(|(_, value)| value.clone())
        };
        let own = [
            "name",
            "consistency",
            "block-size",
            "unlistable",
            "stale-if-error",
            "cache",
            "digest-in-key",
            "read-only",
            "redirects",
        ];
        let options = settings
            .iter()
            .filter(|(name, _)| !own.contains(&name.as_str()));
        Self {
            name: text("name"),
            url: url.to_owned(),
            consistency: text("consistency"),
            block_size: text("block-size"),
            unlistable: text("unlistable"),
            stale_if_error: text("stale-if-error"),
            cache: text("cache"),
            digest_in_key: text("digest-in-key"),
            at_rest_encryption: None,
            public: None,
            read_only: text("read-only").is_some_and(|value| value == "true"),
            redirects: text("redirects"),
            options: options
                .map(|(name, value)| (name.clone(), Value::Text(value.clone())))
                .collect(),
            headers: BTreeMap::new(),
        }
    }
}

/// A key in addition to the server's own, which is unrestricted.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct FileKey {
    pub(super) access_key: String,
    pub(super) secret_key: String,
    pub(super) buckets: Option<Vec<String>>,
    #[serde(default)]
    pub(super) read_only: bool,
}

/// Value of an option. `env:NAME` refers to an environment variable.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Value {
    Text(String),
    Bool(bool),
    Number(i64),
}

impl Value {
    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Bool(value) => value.to_string(),
            Self::Number(value) => value.to_string(),
        }
    }
}

impl FileSettings {
    /// Reads a file. If other users can read it, it must contain no secrets, which then come from the environment.
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let failed =
            |error| Failure::io(format!("cannot read --config {}", path.display()), &error);
        let text = std::fs::read_to_string(path).map_err(failed)?;
        let mode = std::fs::metadata(path)
            .map_err(failed)?
            .permissions()
            .mode();
        let settings = Self::parse(path, &text)?;
        match settings.secret() {
            Some(secret) if mode & WORLD_READABLE != 0 => Err(Failure::usage(format!(
                "--config {}: everyone on this machine may read it, and it has {secret}; chmod 600 it, or write \"env:NAME\" for \
                 the value and set the variable NAME",
                path.display()
            ))),
            _ => Ok(settings),
        }
    }

    pub(super) fn parse(path: &Path, text: &str) -> Result<Self, Failure> {
        toml::from_str(text)
            .map_err(|error| Failure::usage(format!("--config {}: {error}", path.display())))
    }

    /// The name of the first secret written out in the file.
    fn secret(&self) -> Option<String> {
        let own = self
            .secret_key
            .as_deref()
            .filter(|text| is_written_out(text));
        let keys = self.key.iter().map(|key| &key.secret_key);
        let of_key = || keys.clone().find(|text| is_written_out(text));
        let named = own.map(|_| "secret-key".to_owned());
        let named = named.or_else(|| of_key().map(|_| "the secret-key of a [[key]]".to_owned()));
        named.or_else(|| self.bucket.iter().find_map(FileBucket::secret))
    }
}

fn is_written_out(text: &str) -> bool {
    !text.starts_with("env:")
}

/// Whether a store option is not a secret. Unknown options count as secrets.
fn is_harmless(option: &str) -> bool {
    let option = option.to_ascii_lowercase();
    let secret = [
        "secret",
        "token",
        "key",
        "password",
        "credential",
        "sas",
        "account",
        "connection",
    ];
    // Public options whose names contain suspicious words.
    let public = [
        "access_key_id",
        "account_name",
        "bucket_key_enabled",
        "use_",
    ];
    public.iter().any(|word| option.contains(word))
        || !secret.iter().any(|word| option.contains(word))
}

impl FileBucket {
    fn secret(&self) -> Option<String> {
        let written = |(name, value): (&String, &Value)| match value {
            Value::Text(text) if is_written_out(text) => Some(name.clone()),
            _ => None,
        };
        let options = self.options.iter().filter(|(name, _)| !is_harmless(name));
        let option = options.filter_map(written).next();
        let header = || self.headers.iter().filter_map(written).next();
        let url = || {
            let url: Option<bywash::OriginUrl> = self.url.parse().ok();
            url.filter(bywash::OriginUrl::has_secrets)
                .map(|_| "user info or query".to_owned())
        };
        let secret = option.or_else(header).or_else(url)?;
        let name = self.name.as_deref().unwrap_or("without name");
        Some(format!("{secret} of [[bucket]] {name}"))
    }

    /// Returns the settings of the origin, with environment variables resolved.
    pub(super) fn origin_options(&self) -> Result<OriginOptions, Failure> {
        let table = |values: &BTreeMap<String, Value>| {
            let resolved = values.iter().map(|(name, value)| {
                let what = format!(
                    "{name} of [[bucket]] {}",
                    self.name.as_deref().unwrap_or("without name")
                );
                Ok((name.clone(), resolve(&what, &value.text())?))
            });
            resolved.collect::<Result<_, Failure>>()
        };
        let redirects = self.redirects.as_deref().map(str::parse).transpose();
        let redirects = redirects.map_err(|error: String| {
            let name = self.name.as_deref().unwrap_or("without name");
            Failure::usage(format!("[[bucket]] {name}: {error}"))
        })?;
        Ok(OriginOptions {
            options: table(&self.options)?,
            headers: table(&self.headers)?,
            redirects,
        })
    }
}

/// Resolves a text of the file, or the variable it refers to. `what` is its purpose, for messages.
pub(super) fn resolve(what: &str, text: &str) -> Result<String, Failure> {
    let Some(variable) = text.strip_prefix("env:") else {
        return Ok(text.to_owned());
    };
    std::env::var(variable).map_err(|_| {
        Failure::usage(format!(
            "{what} is \"env:{variable}\", but the environment has no variable {variable} in UTF-8; set it"
        ))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::fs::Permissions;

    use bywash::origin::Redirects;
    use bywash_gateway::Scope;

    use super::super::Args;
    use super::super::settings::Settings;
    use super::*;
    use crate::failure::Kind;

    fn read(text: &str, mode: u32) -> Result<FileSettings, Failure> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bywash.toml");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        FileSettings::read(&path)
    }

    #[test]
    fn buckets_and_keys_have_settings_of_their_own() {
        let file = r#"
            [[bucket]]
            name = "site"
            url = "https://data.example/pub"
            headers = { Authorization = "Bearer t0ken" }
            redirects = "any"
            [[bucket]]
            name = "archive"
            url = "s3://archive/2024"
            read-only = true
            options = { endpoint = "http://127.0.0.1:9000", access_key_id = "env:PATH", secret_access_key = "env:PATH", virtual_hosted_style_request = false }
            [[key]]
            access-key = "reader"
            secret-key = "env:PATH"
            buckets = ["site"]
            read-only = true
        "#;
        let settings = Settings::merge(Args::default(), read(file, 0o600).unwrap()).unwrap();
        let [archive, site] = &settings.buckets[..] else {
            panic!("two buckets");
        };
        let path = std::env::var("PATH").unwrap();
        assert!(archive.read_only && !site.read_only);
        assert_eq!(archive.options.options["access_key_id"], path);
        assert_eq!(
            archive.options.options["virtual_hosted_style_request"],
            "false"
        );
        assert_eq!(site.options.headers["Authorization"], "Bearer t0ken");
        assert_eq!(site.options.redirects, Some(Redirects::Any));
        assert_eq!(archive.options.redirects, None);
        let key = &settings.keys[0];
        assert_eq!((&*key.access_key, &key.secret_key), ("reader", &path));
        let scope = Scope {
            buckets: Some(vec!["site".to_owned()]),
            read_only: true,
        };
        assert_eq!(key.scope, scope);
        for bucket in &settings.buckets {
            super::super::origin(bucket).unwrap();
        }
    }

    #[test]
    fn world_readable_file_with_a_secret_is_rejected() {
        let bucket = |rest: &str| format!("[[bucket]]\nname = 'b'\nurl = 's3://b'\n{rest}");
        for (text, expected) in [
            (
                "access-key = 'k'\nsecret-key = 's'".to_owned(),
                "secret-key",
            ),
            (
                "[[key]]\naccess-key = 'k'\nsecret-key = 's'".to_owned(),
                "[[key]]",
            ),
            (
                bucket("options = { secret_access_key = 'hidden' }"),
                "secret_access_key",
            ),
            (bucket("options = { sas_token = 'hidden' }"), "sas_token"),
            (
                bucket("options = { connection_string = 'hidden' }"),
                "connection_string",
            ),
            (bucket("headers = { X-Any = 'hidden' }"), "X-Any"),
            (
                "[[bucket]]\nurl = 'https://me:hidden@h/p'".to_owned(),
                "user info",
            ),
        ] {
            let failure = read(&text, 0o644).unwrap_err();
            assert_eq!(failure.kind, Kind::Usage);
            let message = failure.message;
            assert!(
                message.contains(expected) && message.contains("chmod 600"),
                "{message}"
            );
            assert!(!message.contains("hidden"), "{message}");
            assert!(read(&text, 0o600).is_ok());
        }
        let harmless = "options = { endpoint = 'http://e', profile = 'p', access_key_id = 'k', secret_access_key = 'env:S' }";
        assert!(read(&bucket(harmless), 0o644).is_ok());
    }

    #[test]
    fn error_names_the_invalid_key_or_variable() {
        let key = |rest: &str| format!("[[key]]\naccess-key = 'k'\nsecret-key = 's'\n{rest}");
        for (text, expected) in [
            (key(&key("")), "two keys are named k"),
            (
                format!("[[bucket]]\nurl = 'memory://'\n{}", key("buckets = ['b']")),
                "not served",
            ),
            (format!("anonymous = true\n{}", key("")), "exclude"),
            (key("").replace("'s'", "''"), "empty"),
            (
                key("").replace("'s'", "'env:BYWASH_NO_SUCH_VARIABLE'"),
                "BYWASH_NO_SUCH_VARIABLE",
            ),
        ] {
            let merged = read(&text, 0o600).and_then(|file| Settings::merge(Args::default(), file));
            let message = merged.unwrap_err().message;
            assert!(message.contains(expected), "{message}");
        }
        let bad = "[[bucket]]\nurl = 'memory://'\noptions = { region = 'r' }";
        let settings = Settings::merge(Args::default(), read(bad, 0o600).unwrap()).unwrap();
        let message = super::super::origin(&settings.buckets[0])
            .unwrap_err()
            .message;
        assert!(
            message.contains("memory origin has no option \"region\""),
            "{message}"
        );
    }

    #[test]
    fn redirects_are_allowed_per_web_bucket() {
        let site = |rest: &str| format!("[[bucket]]\nname = 'site'\nurl = 'https://h/p'\n{rest}");
        let settings =
            |text: &str| read(text, 0o600).and_then(|file| Settings::merge(Args::default(), file));
        for (text, redirects) in [
            ("", None),
            ("redirects = 'same-host'", Some(Redirects::SameHost)),
            ("redirects = 'any'", Some(Redirects::Any)),
        ] {
            let bucket = settings(&site(text)).unwrap().buckets.remove(0);
            assert_eq!(bucket.options.redirects, redirects);
            super::super::origin(&bucket).unwrap();
        }
        let message = settings(&site("redirects = 'all'")).unwrap_err().message;
        assert!(
            message.contains("[[bucket]] site") && message.contains("same-host or any"),
            "{message}"
        );
        for url in ["memory://", "s3://b"] {
            let text = format!("[[bucket]]\nname = 'b'\nurl = '{url}'\nredirects = 'any'");
            let bucket = settings(&text).unwrap().buckets.remove(0);
            let message = super::super::origin(&bucket).unwrap_err().message;
            assert!(message.contains("takes no redirects"), "{message}");
        }
    }

    #[test]
    fn damaged_file_is_rejected_by_name_or_parsed() {
        const GOOD: &str = r#"
            memory = "25%"
            s3-addr = "127.0.0.1:8421"
            [[bucket]]
            name = "first"
            url = "s3://bucket"
            block-size = "64KiB"
            options = { region = "here", skip_signature = true, retries = 3 }
            [[key]]
            access-key = "a"
            secret-key = "env:B"
            buckets = ["first"]
        "#;
        let parse = |text| FileSettings::parse(Path::new("bywash.toml"), text);
        assert!(parse(GOOD).is_ok());
        bywash_support::fuzz_corpus::run_mutations(GOOD.as_bytes(), |bytes| {
            let text = String::from_utf8_lossy(bytes);
            if let Err(failure) = FileSettings::parse(Path::new("bywash.toml"), &text) {
                assert!(failure.message.starts_with("--config bywash.toml: "));
            }
        });
    }
}
