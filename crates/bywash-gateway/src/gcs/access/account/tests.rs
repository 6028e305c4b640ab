#![allow(clippy::unwrap_used, reason = "tests")]

use bywash_support::account::{NAME, PEM, der, public_key};
use serde_json::Value;

use super::*;

fn account(name: &str) -> GcsAccount {
    let scope = Scope {
        buckets: Some(vec!["data".to_owned()]),
        read_only: true,
    };
    GcsAccount::new(name, &der(PEM), "http://127.0.0.1:8421/", scope).unwrap()
}

#[test]
fn key_file_has_what_clients_read() {
    let account = account(NAME);
    let file = account.key_file(PEM);
    let file: Value = serde_json::from_str(&file).unwrap();
    for (name, value) in [
        ("type", "service_account"),
        ("client_email", "tester@bywash.iam.gserviceaccount.com"),
        ("token_uri", "http://127.0.0.1:8421/token"),
        ("gcs_base_url", "http://127.0.0.1:8421"),
        ("universe_domain", "googleapis.com"),
        ("private_key", PEM),
        ("private_key_id", &account.key_id),
    ] {
        assert_eq!(file[name], value, "{name}");
    }
    assert_eq!(account.key_id.len(), KEY_ID_DIGITS);
    let id = file["client_id"].as_str().unwrap();
    assert!(id.len() == 21 && id.bytes().all(|byte| byte.is_ascii_digit()));
}

#[test]
fn accounts_are_kept_listed_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("accounts");
    assert_eq!(GcsAccount::list(&folder).unwrap(), []);
    for name in ["two", "one"] {
        account(name).keep(&folder).unwrap();
    }
    let again = account("one").keep(&folder).unwrap_err();
    assert!(matches!(again, GcsAccountError::Exists(_)), "{again}");
    let found = GcsAccount::list(&folder).unwrap();
    assert_eq!(found, [account("one"), account("two")]);
    let file = folder.join("one.json");
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // The private key is in no file of the server.
    let text = fs::read_to_string(file).unwrap();
    let private = PEM.lines().nth(3).unwrap();
    assert!(!text.contains("PRIVATE") && !text.contains(private));
    assert!(GcsAccount::remove(&folder, "one").unwrap());
    assert!(!GcsAccount::remove(&folder, "one").unwrap());
    assert!(!GcsAccount::remove(&folder, "../two").unwrap());
    assert_eq!(GcsAccount::list(&folder).unwrap(), [account("two")]);
}

#[test]
fn names_and_keys_that_do_not_fit_are_refused() {
    let long = "a".repeat(MAX_ACCOUNT_NAME_BYTES + 1);
    for name in ["", "A", "1a", "-a", "a/b", "..", "a.b", "a b", &long] {
        let refused = GcsAccount::new(name, &der(PEM), "", Scope::default());
        let refused = refused.unwrap_err();
        assert!(matches!(refused, GcsAccountError::Name(_)), "{name:?}");
    }
    assert!(GcsAccount::new(&long[1..], &der(PEM), "", Scope::default()).is_ok());
    for key in [&b""[..], b"key", &public_key()] {
        let refused = GcsAccount::new("a", key, "", Scope::default()).unwrap_err();
        assert!(matches!(refused, GcsAccountError::Key(_)));
    }
}

#[tokio::test]
async fn listed_accounts_are_found_by_their_public_keys() {
    let kept = account("one");
    let listed = GcsAccount::from_public_key(
        "one",
        &kept.public_key_text(),
        "http://127.0.0.1:8421/",
        kept.scope.clone(),
    );
    assert_eq!(listed.unwrap(), kept);
    let accounts = Accounts::new(None, std::slice::from_ref(&kept));
    let found = accounts.find(&kept.email()).await.unwrap();
    assert_eq!(found.as_deref(), Some(&kept));
    assert_eq!(accounts.named("two").await.unwrap(), None);
    let key = kept.public_key_text();
    let private = BASE64_STANDARD.encode(der(PEM));
    for bad in ["", "?", "AAAA", &key[4..], &key[..key.len() - 4], &private] {
        let refused = GcsAccount::from_public_key("one", bad, "", Scope::default());
        let refused = refused.unwrap_err();
        assert!(matches!(refused, GcsAccountError::PublicKey), "{bad}");
        assert!(bad.is_empty() || !refused.to_string().contains(bad));
    }
    let refused = GcsAccount::from_public_key("One", &key, "", Scope::default());
    assert!(matches!(refused.unwrap_err(), GcsAccountError::Name(_)));
}

#[tokio::test]
async fn new_accounts_are_found_at_once_and_damaged_ones_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let accounts = Accounts::new(Some(folder.path().to_owned()), &[]);
    let email = account("one").email();
    assert_eq!(accounts.find(&email).await.unwrap(), None);
    account("one").keep(folder.path()).unwrap();
    let found = accounts.find(&email).await.unwrap().unwrap();
    assert_eq!((*found).clone(), account("one"));
    for other in [
        "one",
        "one@example.com",
        "../one@bywash.iam.gserviceaccount.com",
    ] {
        assert_eq!(accounts.find(other).await.unwrap(), None, "{other}");
    }
    fs::write(folder.path().join("bad.json"), "{").unwrap();
    let error = accounts.named("bad").await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert!(error.to_string().contains("bad.json"));
}

#[tokio::test]
async fn removed_account_is_forgotten_after_its_age() {
    let folder = tempfile::tempdir().unwrap();
    let accounts = Accounts::new(Some(folder.path().to_owned()), &[]);
    account("one").keep(folder.path()).unwrap();
    assert!(accounts.named("one").await.unwrap().is_some());
    GcsAccount::remove(folder.path(), "one").unwrap();
    assert!(accounts.named("one").await.unwrap().is_some());
    {
        let mut kept = accounts.kept.lock();
        let (_, read_at) = kept.get_mut("one").unwrap();
        *read_at = read_at.checked_sub(MAX_ACCOUNT_AGE).unwrap();
    }
    assert_eq!(accounts.named("one").await.unwrap(), None);
}

#[tokio::test]
async fn kept_accounts_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let accounts = Accounts::new(Some(folder.path().to_owned()), &[]);
    let (shared, now) = (Arc::new(account("one")), Instant::now());
    let many =
        (0..MAX_KEPT_ACCOUNTS).map(|number| (number.to_string(), (Arc::clone(&shared), now)));
    *accounts.kept.lock() = many.collect();
    account("one").keep(folder.path()).unwrap();
    assert!(accounts.named("one").await.unwrap().is_some());
    assert_eq!(accounts.kept.lock().len(), 1);
}
