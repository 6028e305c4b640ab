//! Profiles of the AWS command line: `~/.aws/credentials` and `~/.aws/config`.
//!
//! Supports static keys, region and endpoint. Credentials from a service (roles, SSO, processes) are not supported:
//! if such a profile is named, the error describes how to export its credentials.

use std::collections::BTreeMap;
use std::path::PathBuf;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};

/// Name of the profile used by default.
const DEFAULT: &str = "default";
/// Settings of a profile with credentials from a service.
const ELSEWHERE: [&str; 5] = [
    "role_arn",
    "sso_session",
    "sso_start_url",
    "credential_process",
    "web_identity_token_file",
];

/// One profile of both files: names in lower case, with their values.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Profile(BTreeMap<String, String>);

impl Profile {
    /// Returns the profile `name`, else the profile of `AWS_PROFILE`, else the default one, which may be absent. `variable`
    /// reads the environment.
    pub(super) fn find(
        name: Option<&str>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, String> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let named = name.map(str::to_owned).or_else(|| set("AWS_PROFILE"));
        let place = |variable: &str, file: &str| {
            let home = || Some(PathBuf::from(set("HOME")?).join(".aws").join(file));
            set(variable).map(PathBuf::from).or_else(home)
        };
        let credentials = place("AWS_SHARED_CREDENTIALS_FILE", "credentials");
        let config = place("AWS_CONFIG_FILE", "config");
        let name = named.as_deref().unwrap_or(DEFAULT);
        let mut found = None;
        // For settings in both files, the credentials file takes precedence.
        for (file, sections) in [
            (&config, &[name.to_owned(), format!("profile {name}")][..]),
            (&credentials, &[name.to_owned()]),
        ] {
            let Some(file) = file else { continue };
            let text = match std::fs::read_to_string(file) {
                Ok(text) => text,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(format!("cannot read {}: {error}", file.display())),
            };
            for section in sections {
                if let Some(values) = section_of(&text, section) {
                    found.get_or_insert_with(BTreeMap::new).extend(values);
                }
            }
        }
        match found {
            Some(values) => Ok(Self(values)),
            None if named.is_none() => Ok(Self::default()),
            None => {
                let shown = |file: &Option<PathBuf>| {
                    let file = file.as_ref().map(|file| file.display().to_string());
                    file.unwrap_or_else(|| "(no HOME)".to_owned())
                };
                Err(format!(
                    "there is no profile {name:?} in {} or {}; mend the name, or run: aws configure --profile {name}",
                    shown(&credentials),
                    shown(&config)
                ))
            }
        }
        .and_then(|profile| match profile.elsewhere() {
            Some(how) if named.is_some() && !profile.0.contains_key("aws_access_key_id") => {
                Err(format!(
                    "profile {name:?} gets its credentials by {how}, which is not supported; hand them over: \
                     eval \"$(aws configure export-credentials --profile {name} --format env)\""
                ))
            }
            _ => Ok(profile),
        })
    }

    fn elsewhere(&self) -> Option<&'static str> {
        ELSEWHERE.into_iter().find(|key| self.0.contains_key(*key))
    }

    /// The profile's endpoint.
    pub(super) fn endpoint(&self) -> Option<&str> {
        self.0.get("endpoint_url").map(String::as_str)
    }

    /// Sets the values that `builder` does not have yet. Takes both credentials from one source.
    pub(super) fn fill(&self, mut builder: AmazonS3Builder) -> AmazonS3Builder {
        use AmazonS3ConfigKey::{
            AccessKeyId, Endpoint, Region, S3Endpoint, SecretAccessKey, Token,
        };
        let absent = |builder: &AmazonS3Builder, key| builder.get_config_value(&key).is_none();
        let mut settings = Vec::new();
        if absent(&builder, AccessKeyId) {
            settings.extend([
                (AccessKeyId, "aws_access_key_id"),
                (SecretAccessKey, "aws_secret_access_key"),
                (Token, "aws_session_token"),
            ]);
        }
        if absent(&builder, Region) {
            settings.push((Region, "region"));
        }
        if absent(&builder, Endpoint) && absent(&builder, S3Endpoint) {
            settings.push((Endpoint, "endpoint_url"));
        }
        for (key, name) in settings {
            if let Some(value) = self.0.get(name) {
                builder = builder.with_config(key, value);
            }
        }
        builder
    }
}

/// Parses one section of an INI file in AWS's format; `None` if it is absent. Skips comments, and indented lines,
/// which belong to the previous setting.
fn section_of(text: &str, section: &str) -> Option<BTreeMap<String, String>> {
    let (mut inside, mut found) = (false, None);
    for line in text.lines() {
        if line.starts_with([' ', '\t', '#', ';']) {
            continue;
        }
        if let Some(header) = line.strip_prefix('[') {
            let header = header.split(']').next().unwrap_or_default();
            // `[profile "two words"]`
            let words: Vec<_> = header
                .splitn(2, ' ')
                .map(|word| word.trim().trim_matches('"'))
                .collect();
            inside = words.join(" ").trim() == section;
            if inside {
                found.get_or_insert_with(BTreeMap::new);
            }
        } else if let (true, Some(values), Some((name, value))) =
            (inside, &mut found, line.split_once('='))
        {
            // A comment after a value follows a space; no key or secret contains one.
            let value = value.split(" #").next().unwrap_or_default();
            let value = value.split(" ;").next().unwrap_or_default();
            values.insert(name.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    const CREDENTIALS: &str = "\
# made by hand
[default]
aws_access_key_id = AKIADEFAULT
aws_secret_access_key=secret/with=equals+plus

[minio]
AWS_ACCESS_KEY_ID = minio # of the test machine
aws_secret_access_key = minio-secret
aws_session_token = token
";
    const CONFIG: &str = "\
[default]
region = eu-west-1
s3 =
  region = indented
  addressing_style = path
[profile minio]
region = us-west-2
endpoint_url = http://127.0.0.1:9000
[profile \"two words\"]
region = eu-north-1
[profile login]
sso_session = corp
[minio-not]
region = none
";

    /// A home folder with these files, and its environment.
    struct Home(tempfile::TempDir);

    impl Home {
        fn new() -> Self {
            let home = tempfile::tempdir().unwrap();
            std::fs::create_dir(home.path().join(".aws")).unwrap();
            std::fs::write(home.path().join(".aws/credentials"), CREDENTIALS).unwrap();
            std::fs::write(home.path().join(".aws/config"), CONFIG).unwrap();
            Self(home)
        }

        fn find(&self, name: Option<&str>, variables: &[(&str, &str)]) -> Result<Profile, String> {
            let home = self.0.path().to_str().unwrap();
            let all = [&[("HOME", home)], variables].concat();
            Profile::find(name, |wanted| {
                let found = all.iter().find(|(name, _)| *name == wanted);
                found.map(|(_, value)| (*value).to_owned())
            })
        }
    }

    fn filled(profile: &Profile, builder: AmazonS3Builder) -> Vec<Option<String>> {
        let builder = profile.fill(builder);
        [
            AmazonS3ConfigKey::AccessKeyId,
            AmazonS3ConfigKey::SecretAccessKey,
            AmazonS3ConfigKey::Token,
            AmazonS3ConfigKey::Region,
            AmazonS3ConfigKey::Endpoint,
        ]
        .iter()
        .map(|key| builder.get_config_value(key))
        .collect()
    }

    fn texts(values: [&str; 5]) -> Vec<Option<String>> {
        let text = |value: &str| (!value.is_empty()).then(|| value.to_owned());
        values.into_iter().map(text).collect()
    }

    #[test]
    fn profile_merges_both_files() {
        let home = Home::new();
        let new = AmazonS3Builder::new;
        let of_default = texts([
            "AKIADEFAULT",
            "secret/with=equals+plus",
            "",
            "eu-west-1",
            "",
        ]);
        assert_eq!(filled(&home.find(None, &[]).unwrap(), new()), of_default);
        let of_minio = texts([
            "minio",
            "minio-secret",
            "token",
            "us-west-2",
            "http://127.0.0.1:9000",
        ]);
        let minio = home.find(None, &[("AWS_PROFILE", "minio")]).unwrap();
        assert_eq!(filled(&minio, new()), of_minio);
        let named = home
            .find(Some("minio"), &[("AWS_PROFILE", "default")])
            .unwrap();
        assert_eq!(named, minio);
        let spaced = home.find(Some("two words"), &[]).unwrap();
        assert_eq!(
            filled(&spaced, new()),
            texts(["", "", "", "eu-north-1", ""])
        );
    }

    #[test]
    fn profile_keeps_set_values_and_does_not_mix_credentials() {
        let minio = Home::new().find(Some("minio"), &[]).unwrap();
        let builder = AmazonS3Builder::new()
            .with_access_key_id("own")
            .with_secret_access_key("own-secret")
            .with_region("own-region");
        assert_eq!(
            filled(&minio, builder),
            texts([
                "own",
                "own-secret",
                "",
                "own-region",
                "http://127.0.0.1:9000"
            ])
        );
    }

    #[test]
    fn files_may_be_moved_or_missing_but_a_named_profile_must_exist() {
        let home = Home::new();
        let nowhere = [
            ("AWS_SHARED_CREDENTIALS_FILE", "/nowhere"),
            ("AWS_CONFIG_FILE", "/nowhere"),
        ];
        assert_eq!(home.find(None, &nowhere), Ok(Profile::default()));
        let error = home.find(Some("minio"), &nowhere).unwrap_err();
        assert!(error.contains("\"minio\" in /nowhere"), "{error}");
        assert!(error.contains("aws configure --profile minio"), "{error}");
        let error = home.find(Some("minio-not-there"), &[]).unwrap_err();
        assert!(error.contains(".aws/credentials"), "{error}");
        assert_eq!(Profile::find(None, |_| None), Ok(Profile::default()));
    }

    #[test]
    fn profile_with_service_credentials_fails_with_the_export_command() {
        let error = Home::new().find(Some("login"), &[]).unwrap_err();
        assert!(error.contains("sso_session"), "{error}");
        assert!(
            error.contains("export-credentials --profile login"),
            "{error}"
        );
    }
}
