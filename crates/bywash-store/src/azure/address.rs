//! URLs of an account's blobs.

use http::HeaderValue;
use http::header::HeaderName;
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::client::HttpRequest;
use object_store::path::Path;
use url::Url;

/// The account of Azurite and of earlier emulators.
const EMULATOR_ACCOUNT: &str = "devstoreaccount1";
/// Default URL of an emulator, unless `AZURITE_BLOB_STORAGE_URL` is set.
const EMULATOR: &str = "http://127.0.0.1:10000";
/// Protocol version of anonymous requests; object_store sets it in the others.
const VERSION: &str = "2023-11-03";

/// A container's URL, derived as object_store does from the same settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) container: Url,
    pub(super) account: String,
    /// Requests are not signed.
    pub(super) anonymous: bool,
}

impl Address {
    pub(super) fn of(builder: &MicrosoftAzureBuilder, container: &str) -> Result<Self, String> {
        let value = |key| builder.get_config_value(&key);
        let is = |key| value(key).as_deref() == Some("true");
        let emulator = is(AzureConfigKey::UseEmulator);
        let account = value(AzureConfigKey::AccountName);
        let account = account.unwrap_or_else(|| EMULATOR_ACCOUNT.to_owned());
        let service = if emulator {
            std::env::var("AZURITE_BLOB_STORAGE_URL").unwrap_or_else(|_| EMULATOR.to_owned())
        } else if let Some(endpoint) = value(AzureConfigKey::Endpoint) {
            endpoint
        } else if is(AzureConfigKey::UseFabricEndpoint) {
            format!("https://{account}.blob.fabric.microsoft.com")
        } else {
            format!("https://{account}.blob.core.windows.net")
        };
        let mut url =
            Url::parse(&service).map_err(|error| format!("endpoint {service}: {error}"))?;
        {
            let mut segments = url
                .path_segments_mut()
                .map_err(|()| format!("endpoint {service} takes no path"))?;
            segments.pop_if_empty();
            if emulator {
                segments.push(&account);
            }
            segments.push(container);
        }
        Ok(Self {
            container: url,
            account,
            anonymous: is(AzureConfigKey::SkipSignature),
        })
    }

    /// Returns the URL of a blob of the container.
    pub(super) fn blob(&self, path: &Path, query: &[(&str, &str)]) -> Url {
        let mut url = self.container.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.extend(path.parts());
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        url
    }
}

/// Adds the version to an authorized request; without it, an old version of the protocol applies.
pub(super) fn add_version(request: &mut HttpRequest) {
    let name = HeaderName::from_static("x-ms-version");
    request
        .headers_mut()
        .insert(name, HeaderValue::from_static(VERSION));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn blob_urls_equal_those_of_object_store() {
        let builder = MicrosoftAzureBuilder::new().with_account("acct");
        let address = Address::of(&builder, "data").unwrap();
        let url = address.blob(
            &Path::from("a/b c"),
            &[("comp", "block"), ("blockid", "a+b=")],
        );
        assert_eq!(
            url.as_str(),
            "https://acct.blob.core.windows.net/data/a/b%20c?comp=block&blockid=a%2Bb%3D"
        );
        let local = builder.with_endpoint("http://127.0.0.1:9/acct/".to_owned());
        let address = Address::of(&local, "data").unwrap();
        assert_eq!(
            address.blob(&Path::from("k"), &[]).as_str(),
            "http://127.0.0.1:9/acct/data/k"
        );
        assert_eq!(address.account, "acct");
    }
}
