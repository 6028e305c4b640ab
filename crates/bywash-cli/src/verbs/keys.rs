//! `bywash keys`: service accounts of a server's GCS endpoint.

use std::io::Write;
use std::path::{Path, PathBuf};

use bywash_gateway::{GcsAccount, GcsAccountError, Scope};
use rand::distr::{Alphanumeric, SampleString};
use rsa::PrivateKey;
use rsa::pkcs8::{EncodePrivateKey, LineEnding};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject;
use serde::Serialize;
use url::Url;

use crate::failure::{Failure, Kind};
use crate::output::{Output, written};
use crate::serve::data_dir::{DEFAULT_DATA_DIR, Session, gcs_accounts};
use crate::serve::gcs_accounts::settings_table;

/// Bits of a generated key, as of Google's.
const KEY_BITS: usize = 2048;
/// Length of the random part of a name that was not given.
const NAME_LENGTH: usize = 8;

/// Make, list and remove keys for clients of Google's storage
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    Create(CreateArgs),
    /// List the service accounts
    ///
    /// With --json, a line an account: name, email, key_id, buckets (null if all), read_only.
    Ls {
        /// Print the accounts as tables for `bywash serve --config`, where those of a cluster are; they have no secrets
        #[arg(long)]
        toml: bool,
        #[command(flatten)]
        folder: FolderArgs,
    },
    /// Remove service accounts: a server that runs refuses them after ten seconds
    ///
    /// With --json, a line an account: removed.
    Rm {
        /// Names of the accounts
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
        #[command(flatten)]
        folder: FolderArgs,
    },
}

#[derive(Debug, clap::Args)]
struct FolderArgs {
    /// The server's data folder
    #[arg(long, value_name = "DIR", env = "BYWASH_DATA_DIR", default_value = DEFAULT_DATA_DIR)]
    data_dir: PathBuf,
}

/// Make a service account, and print its key file: bywash keys create --gcs > key.json
///
/// Clients of Google's storage find the file by GOOGLE_APPLICATION_CREDENTIALS. A client that has it has the rights of the account.
/// The server keeps the public key only, and knows the account at once. A node of a cluster takes accounts from its --config only: put
/// there what bywash keys ls --toml prints.
#[derive(Debug, clap::Args)]
struct CreateArgs {
    /// For the endpoint of Google's storage API; keys for S3 are `[[key]]` tables of `bywash serve --config`
    #[arg(long, required = true)]
    gcs: bool,
    /// Name of the account [default: a random one]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// A bucket that it reaches; may be repeated [default: all]
    #[arg(long, value_name = "NAME")]
    bucket: Vec<String>,
    /// Let it only read and list
    #[arg(long)]
    read_only: bool,
    /// URL of the endpoint, as clients reach it [default: that of the server which uses the data folder, or used it last]
    #[arg(long, value_name = "URL")]
    endpoint: Option<Url>,
    /// A private key to use, RSA in a PKCS#8 PEM file [default: one is generated]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    #[command(flatten)]
    folder: FolderArgs,
}

/// An account in a list.
#[derive(Debug, Serialize)]
struct Listed<'a> {
    name: &'a str,
    email: String,
    key_id: &'a str,
    buckets: Option<&'a [String]>,
    read_only: bool,
}

#[derive(Debug, Serialize)]
struct Removed<'a> {
    removed: &'a str,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    match args.verb {
        Verb::Create(create) => self::create(create, args.output),
        Verb::Ls { toml, folder } => list(&folder.data_dir, toml, args.output),
        Verb::Rm { names, folder } => remove(&folder.data_dir, &names, args.output),
    }
}

fn create(args: CreateArgs, output: Output) -> Result<(), Failure> {
    let endpoint = match args.endpoint {
        Some(url) => url.to_string(),
        None => running_endpoint(&args.folder.data_dir)?,
    };
    let pem = match &args.key_file {
        Some(path) => read_key(path)?,
        None => generate()?,
    };
    let der = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes())
        .map_err(|error| Failure::usage(format!("the key is no PKCS#8 PEM file: {error}")))?;
    let scope = Scope {
        buckets: Some(args.bucket).filter(|buckets| !buckets.is_empty()),
        read_only: args.read_only,
    };
    let name = args.name.unwrap_or_else(random_name);
    let account = GcsAccount::new(&name, der.secret_pkcs8_der(), &endpoint, scope);
    let account = account.map_err(failure)?;
    let folder = gcs_accounts(&args.folder.data_dir);
    account.keep(&folder).map_err(failure)?;
    let file = account.key_file(&pem);
    if let Err(error) = written(std::io::stdout().lock().write_all(file.as_bytes())) {
        // A key that is in no file is of no use.
        let _ = GcsAccount::remove(&folder, &name);
        return Err(error);
    }
    output.note(&format!(
        "made the service account {name}; its private key is in this output only, so keep it private: chmod 600 its file"
    ));
    Ok(())
}

fn failure(error: GcsAccountError) -> Failure {
    match error {
        GcsAccountError::Name(_) | GcsAccountError::Key(_) => Failure::usage(error.to_string()),
        _ => Failure::failed(error.to_string()),
    }
}

fn running_endpoint(data_dir: &Path) -> Result<String, Failure> {
    Session::read(data_dir)?.gcs.ok_or_else(|| {
        Failure::new(
            Kind::NotFound,
            format!(
                "the server of {} has no GCS endpoint; start it without --gcs-addr off, or give --endpoint",
                data_dir.display()
            ),
        )
    })
}

fn read_key(path: &Path) -> Result<String, Failure> {
    let text = std::fs::read_to_string(path);
    text.map_err(|error| Failure::io(format!("cannot read {}", path.display()), &error))
}

/// Generates a private key, in PKCS#8 PEM. It signs nothing here.
fn generate() -> Result<String, Failure> {
    let failed =
        |error: &dyn std::fmt::Display| Failure::failed(format!("cannot make a key: {error}"));
    let key = PrivateKey::new(&mut rand::rng(), KEY_BITS).map_err(|error| failed(&error))?;
    let pem = key.to_pkcs8_pem(LineEnding::LF);
    Ok(pem.map_err(|error| failed(&error))?.to_string())
}

fn random_name() -> String {
    let random = Alphanumeric.sample_string(&mut rand::rng(), NAME_LENGTH);
    format!("key-{}", random.to_ascii_lowercase())
}

fn list(data_dir: &Path, toml: bool, output: Output) -> Result<(), Failure> {
    let folder = gcs_accounts(data_dir);
    let found = GcsAccount::list(&folder);
    let found =
        found.map_err(|error| Failure::io(format!("cannot read {}", folder.display()), &error))?;
    for account in &found {
        let listed = Listed {
            name: &account.name,
            email: account.email(),
            key_id: &account.key_id,
            buckets: account.scope.buckets.as_deref(),
            read_only: account.scope.read_only,
        };
        output.lines(&listed, || {
            if toml {
                return settings_table(account);
            }
            let buckets = account.scope.buckets.as_ref();
            let buckets = buckets.map_or("all buckets".to_owned(), |names| names.join(" "));
            let what = if account.scope.read_only {
                "reads"
            } else {
                "has"
            };
            vec![format!("{} {what} {buckets}", account.name)]
        })?;
    }
    Ok(())
}

fn remove(data_dir: &Path, names: &[String], output: Output) -> Result<(), Failure> {
    let folder = gcs_accounts(data_dir);
    for name in names {
        match GcsAccount::remove(&folder, name) {
            Ok(true) => output.line(&Removed { removed: name }, || format!("removed {name}"))?,
            Ok(false) => {
                let text = format!(
                    "there is no service account {name} in {}; bywash keys ls lists them",
                    data_dir.display()
                );
                return Err(Failure::new(Kind::NotFound, text));
            }
            Err(error) => {
                return Err(Failure::io(
                    format!("cannot remove the account {name}"),
                    &error,
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn generated_key_is_that_of_an_account() {
        let pem = generate().unwrap();
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).unwrap();
        let name = random_name();
        let made = GcsAccount::new(&name, der.secret_pkcs8_der(), "http://h", Scope::default());
        assert_eq!(made.unwrap().name, name);
        assert_ne!(generate().unwrap(), pem);
    }
}
