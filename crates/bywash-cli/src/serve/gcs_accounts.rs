//! Service accounts of the settings file. A cluster has its accounts there, as its nodes share no
//! folder.

use std::path::Path;

use bywash_gateway::{GcsAccount, Scope};
use serde::Deserialize;
use serde_json::json;

use super::settings::{Access, BucketSettings};
use crate::failure::Failure;

/// A `[[gcs-account]]`. It has no secret.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct FileAccount {
    name: String,
    /// PKCS#1 in base64.
    public_key: String,
    /// URL in the key file of its clients; their tokens name a part of it.
    endpoint: String,
    buckets: Option<Vec<String>>,
    #[serde(default)]
    read_only: bool,
}

/// The lines of an account's table in a settings file.
pub(crate) fn settings_table(account: &GcsAccount) -> Vec<String> {
    // Strings and arrays of JSON are valid in TOML too.
    let mut lines = vec![
        "[[gcs-account]]".to_owned(),
        format!("name = {}", json!(account.name)),
        format!("public-key = {}", json!(account.public_key_text())),
        format!("endpoint = {}", json!(account.endpoint)),
    ];
    if let Some(buckets) = &account.scope.buckets {
        lines.push(format!("buckets = {}", json!(buckets)));
    }
    if account.scope.read_only {
        lines.push("read-only = true".to_owned());
    }
    lines
}

/// Validates the accounts of the file: known buckets, no duplicates.
pub(super) fn accounts(
    file: Vec<FileAccount>,
    access: &Access,
    buckets: &[BucketSettings],
) -> Result<Vec<GcsAccount>, Failure> {
    if *access == Access::Anonymous && !file.is_empty() {
        return Err(Failure::usage(
            "[[gcs-account]] and anonymous exclude each other: an anonymous server needs no accounts; drop one",
        ));
    }
    let mut accounts: Vec<GcsAccount> = Vec::with_capacity(file.len());
    for given in file {
        let name = given.name;
        let bad = |reason: &dyn std::fmt::Display| {
            Failure::usage(format!("[[gcs-account]] {name}: {reason}"))
        };
        if accounts.iter().any(|other| other.name == name) {
            return Err(bad(
                &"two accounts have this name; give one of them another",
            ));
        }
        let known = |bucket: &&String| buckets.iter().any(|known| known.name == **bucket);
        // Without URLs, buckets are created and deleted at run time.
        let mut named = given.buckets.iter().flatten();
        if let Some(unknown) = named.find(|bucket| !buckets.is_empty() && !known(bucket)) {
            let reason = format!("bucket {unknown} is not served; correct the name, or serve it");
            return Err(bad(&reason));
        }
        let scope = Scope {
            buckets: given.buckets,
            read_only: given.read_only,
        };
        let account = GcsAccount::from_public_key(&name, &given.public_key, &given.endpoint, scope);
        accounts.push(account.map_err(|error| bad(&error))?);
    }
    Ok(accounts)
}

/// Refuses service accounts of the data folder of a node: other nodes would not know them. Blocks.
pub(super) fn refuse_kept(folder: &Path) -> Result<(), Failure> {
    let kept = GcsAccount::list(folder);
    let kept =
        kept.map_err(|error| Failure::io(format!("cannot read {}", folder.display()), &error))?;
    match kept.first() {
        None => Ok(()),
        Some(account) => Err(Failure::usage(format!(
            "--cluster takes no service accounts of the data folder, as {}, which only one node has: put the output of `bywash keys ls --toml` into --config, the same on all nodes, then remove it by `bywash keys rm {}`",
            account.name, account.name
        ))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use bywash_support::account::{NAME, PEM, der};

    use super::super::Args;
    use super::super::file::FileSettings;
    use super::super::settings::Settings;
    use super::*;

    fn account(buckets: Option<Vec<String>>) -> GcsAccount {
        let scope = Scope {
            read_only: buckets.is_some(),
            buckets,
        };
        GcsAccount::new(NAME, &der(PEM), "https://gcs.example", scope).unwrap()
    }

    fn merged(text: &str) -> Result<Settings, String> {
        let file = FileSettings::parse(Path::new("bywash.toml"), text);
        let settings = file.and_then(|file| Settings::merge(Args::default(), file));
        settings.map_err(|failure| failure.message)
    }

    #[test]
    fn table_of_an_account_is_read_as_the_account() {
        let bucket = "[[bucket]]\nname = 'data'\nurl = 's3://data'\n";
        for account in [account(None), account(Some(vec!["data".to_owned()]))] {
            let settings = merged(&format!(
                "{bucket}{}\n",
                settings_table(&account).join("\n")
            ))
            .unwrap();
            assert_eq!(settings.gcs_accounts, [account]);
        }
    }

    #[test]
    fn accounts_that_do_not_fit_are_refused_by_name() {
        let bucket = "[[bucket]]\nname = 'data'\nurl = 's3://data'\n";
        let table = settings_table(&account(None)).join("\n");
        for (text, reason) in [
            (format!("{table}\n{table}"), "two accounts"),
            (format!("anonymous = true\n{table}"), "exclude"),
            (
                format!("{bucket}{table}\nbuckets = ['other']"),
                "other is not served",
            ),
            (table.replace("\"MII", "\"MIJ"), "PKCS#1"),
            (table.replace(NAME, "No Name"), "cannot be named"),
            (format!("{table}\nsecret = 'x'"), "unknown field"),
        ] {
            let message = merged(&text).err().unwrap();
            assert!(message.contains(reason), "{reason}: {message}");
        }
    }

    #[test]
    fn accounts_of_the_data_folder_are_refused_in_a_cluster() {
        let folder = tempfile::tempdir().unwrap();
        refuse_kept(folder.path()).unwrap();
        account(None).keep(folder.path()).unwrap();
        let message = refuse_kept(folder.path()).unwrap_err().message;
        let remedy = format!("bywash keys rm {NAME}");
        assert!(
            message.contains("--toml") && message.contains(&remedy),
            "{message}"
        );
    }
}
