//! Connection strings, as displayed by the portal and accepted by Azure's own clients:
//! `AccountName=...;AccountKey=...`.

use object_store::azure::AzureConfigKey;

/// Parses a connection string into settings of the client.
///
/// # Errors
/// Do not contain the string, which holds a key.
pub(super) fn settings(text: &str) -> Result<Vec<(AzureConfigKey, String)>, String> {
    let (mut settings, mut blobs, mut account, mut suffix) = (Vec::new(), None, None, None);
    let mut scheme = "https".to_owned();
    for part in text
        .split(';')
        .map(str::trim)
        .filter(|part| !part.is_empty())
    {
        // A key ends in `=` signs of its own.
        let (name, value) = part.split_once('=').ok_or_else(|| {
            "a connection string is made of NAME=VALUE, separated by semicolons; copy it from the account's access keys".to_owned()
        })?;
        let value = value.trim().to_owned();
        match name.trim().to_ascii_lowercase().as_str() {
            "usedevelopmentstorage" => {
                settings.push((AzureConfigKey::UseEmulator, value.to_ascii_lowercase()))
            }
            "accountname" => account = Some(value),
            "accountkey" => settings.push((AzureConfigKey::AccessKey, value)),
            "sharedaccesssignature" => settings.push((AzureConfigKey::SasKey, value)),
            "blobendpoint" => blobs = Some(value),
            "endpointsuffix" => suffix = Some(value),
            "defaultendpointsprotocol" => scheme = value,
            // Of queues, tables and files.
            _ => {}
        }
    }
    if let (None, Some(account), Some(suffix)) = (&blobs, &account, suffix) {
        blobs = Some(format!("{scheme}://{account}.blob.{suffix}"));
    }
    let account = account.or_else(|| account_of(blobs.as_deref()?));
    if account.is_none() && settings.is_empty() {
        return Err("the connection string names no account; it needs AccountName, or BlobEndpoint and SharedAccessSignature".to_owned());
    }
    settings.extend(account.map(|account| (AzureConfigKey::AccountName, account)));
    settings.extend(blobs.map(|blobs| (AzureConfigKey::Endpoint, blobs)));
    Ok(settings)
}

/// Returns the account in `https://ACCOUNT.blob.core.windows.net`.
fn account_of(endpoint: &str) -> Option<String> {
    let url = url::Url::parse(endpoint).ok()?;
    let (account, rest) = url.domain()?.split_once('.')?;
    rest.starts_with("blob.").then(|| account.to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use AzureConfigKey::{AccessKey, AccountName, Endpoint, SasKey, UseEmulator};

    use super::*;

    fn read(text: &str) -> Vec<(AzureConfigKey, String)> {
        settings(text).unwrap()
    }

    fn pairs<const N: usize>(pairs: [(AzureConfigKey, &str); N]) -> Vec<(AzureConfigKey, String)> {
        pairs.map(|(key, value)| (key, value.to_owned())).to_vec()
    }

    #[test]
    fn connection_strings_parse_as_in_azures_clients() {
        let portal = "DefaultEndpointsProtocol=https;AccountName=acct;AccountKey=a2V5/+==;EndpointSuffix=core.windows.net";
        let endpoint = "https://acct.blob.core.windows.net";
        assert_eq!(
            read(portal),
            pairs([
                (AccessKey, "a2V5/+=="),
                (AccountName, "acct"),
                (Endpoint, endpoint)
            ])
        );
        let azurite = "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey=a2V5;\
                       BlobEndpoint=http://127.0.0.1:10000/devstoreaccount1;QueueEndpoint=http://127.0.0.1:10001/devstoreaccount1;";
        let endpoint = "http://127.0.0.1:10000/devstoreaccount1";
        assert_eq!(
            read(azurite),
            pairs([
                (AccessKey, "a2V5"),
                (AccountName, "devstoreaccount1"),
                (Endpoint, endpoint)
            ])
        );
        let signed = "BlobEndpoint=https://acct.blob.core.windows.net/;SharedAccessSignature=sv=2023&sig=a%3D";
        assert_eq!(
            read(signed),
            pairs([
                (SasKey, "sv=2023&sig=a%3D"),
                (AccountName, "acct"),
                (Endpoint, "https://acct.blob.core.windows.net/")
            ])
        );
        assert_eq!(
            read("UseDevelopmentStorage=true"),
            pairs([(UseEmulator, "true")])
        );
    }

    #[test]
    fn invalid_connection_string_is_rejected_and_not_displayed() {
        for bad in [
            "hidden",
            "AccountName",
            "EndpointSuffix=hidden",
            "",
            "QueueEndpoint=hidden;",
        ] {
            let error = settings(bad).unwrap_err();
            assert!(!error.contains("hidden"), "{error}");
            assert!(error.contains("connection string"), "{error}");
        }
    }
}
