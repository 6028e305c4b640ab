//! `bywash env`: shell lines that point clients of S3 or of Google's storage at the server of a data folder.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::failure::{Failure, Kind};
use crate::output::{Output, written};
use crate::serve::data_dir::{DEFAULT_DATA_DIR, Session};
use crate::serve::gcs::EMULATOR_HOST;

/// Print export lines for S3 clients: eval "$(bywash env)"
///
/// They name the endpoint and the credentials of the server that uses the data folder, or used it
/// last. With --gcs, the line for clients of Google's storage. With --json, one document: each variable with its value.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The server's data folder
    #[arg(long, value_name = "DIR", default_value = DEFAULT_DATA_DIR)]
    data_dir: PathBuf,
    /// Print the line for clients of Google's storage: eval "$(bywash env --gcs)"
    #[arg(long)]
    gcs: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    use std::io::Write;

    let session = Session::read(&args.data_dir)?;
    let variables = match args.gcs {
        true => vec![(EMULATOR_HOST, gcs_endpoint(args, &session)?)],
        false => variables(&session).to_vec(),
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
