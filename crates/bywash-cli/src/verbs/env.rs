//! `bywash env`: shell lines that point clients of S3 or of Google's storage at the server of a data folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Kind};
use crate::output::{Output, written};
use crate::serve::data_dir::{DEFAULT_DATA_DIR, Session};
use crate::serve::gcs::EMULATOR_HOST;

/// Names the key file to clients of Google's storage.
const CREDENTIALS: &str = "GOOGLE_APPLICATION_CREDENTIALS";
/// Points Google's Python client at a server, with credentials.
const ENDPOINT_OVERRIDE: &str = "API_ENDPOINT_OVERRIDE";
/// Keeps gcsfs from asking for the kind of a bucket by gRPC over TLS, which it would do for a minute before each operation.
const GCSFS_WITHOUT_GRPC: (&str, &str) = ("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false");

/// Print export lines for clients of S3, or of Google's storage: eval "$(bywash env)"
///
/// They name the endpoint and the credentials of the server that uses the data folder, or used it
/// last. With --gcs, the lines for clients of Google's storage: of an anonymous server STORAGE_EMULATOR_HOST; of another one, which needs
/// --key-file, GOOGLE_APPLICATION_CREDENTIALS, and API_ENDPOINT_OVERRIDE for the Python client; and for gcsfs of both
/// GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT. With --json, one document: each variable with its value.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The server's data folder
    #[arg(long, value_name = "DIR", env = "BYWASH_DATA_DIR", default_value = DEFAULT_DATA_DIR)]
    data_dir: PathBuf,
    /// Print the lines for clients of Google's storage: eval "$(bywash env --gcs)"
    #[arg(long)]
    gcs: bool,
    /// Key file for a server that is not anonymous, by bywash keys create --gcs
    #[arg(long, value_name = "FILE", requires = "gcs")]
    key_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: Output,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    use std::io::Write;

    let session = Session::read(&args.data_dir)?;
    let key_file = args.key_file.as_deref().map(absolute).transpose()?;
    let variables = if args.gcs {
        gcs_variables(gcs_endpoint(args, &session)?, &session, key_file.as_deref())?
    } else {
        variables(&session).to_vec()
    };
    if args.output.json {
        let values: BTreeMap<_, _> = variables.into_iter().collect();
        return args.output.line(&values, String::new);
    }
    written(
        std::io::stdout()
            .lock()
            .write_all(lines(&variables).as_bytes()),
    )
}

fn gcs_endpoint<'a>(args: &Args, session: &'a Session) -> Result<&'a str, Failure> {
    session.gcs.as_deref().ok_or_else(|| {
        Failure::new(
            Kind::NotFound,
            format!(
                "the server of {} has no GCS endpoint; start it without --gcs-addr off",
                args.data_dir.display()
            ),
        )
    })
}

/// Resolves the path of a key file, which clients read from any folder.
fn absolute(path: &Path) -> Result<String, Failure> {
    let found = path.canonicalize();
    let found = found.map_err(|error| {
        Failure::io(format!("cannot read --key-file {}", path.display()), &error)
    })?;
    let text = found.to_str().map(str::to_owned);
    text.ok_or_else(|| {
        Failure::usage(format!(
            "--key-file {} is not UTF-8; rename it",
            found.display()
        ))
    })
}

fn gcs_variables<'a>(
    endpoint: &'a str,
    session: &Session,
    key_file: Option<&'a str>,
) -> Result<Vec<(&'static str, &'a str)>, Failure> {
    match key_file {
        Some(file) => Ok(vec![
            (CREDENTIALS, file),
            (ENDPOINT_OVERRIDE, endpoint),
            GCSFS_WITHOUT_GRPC,
        ]),
        None if session.is_anonymous() => Ok(vec![(EMULATOR_HOST, endpoint), GCSFS_WITHOUT_GRPC]),
        None => Err(Failure::usage(
            "the server is not anonymous, so clients need a key file: bywash keys create --gcs > key.json, then \
             bywash env --gcs --key-file key.json",
        )),
    }
}

fn variables(session: &Session) -> [(&'static str, &str); 5] {
    // Two names for the region: the SDKs disagree on which one they read.
    [
        ("AWS_ACCESS_KEY_ID", &session.credentials.access_key),
        ("AWS_SECRET_ACCESS_KEY", &session.credentials.secret_key),
        ("AWS_ENDPOINT_URL", &session.endpoint),
        ("AWS_REGION", &session.region),
        ("AWS_DEFAULT_REGION", &session.region),
    ]
}

fn lines(variables: &[(&str, &str)]) -> String {
    variables
        .iter()
        .map(|(name, value)| format!("export {name}={}\n", quote(value)))
        .collect()
}

/// `value` as one word of a POSIX shell.
fn quote(value: &str) -> String {
    format!("'{}'", value.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::quote;

    #[test]
    fn any_value_is_one_shell_word() {
        assert_eq!(quote("a b$(rm)"), "'a b$(rm)'");
        assert_eq!(quote("it's"), r"'it'\''s'");
        assert_eq!(quote(""), "''");
    }
}
