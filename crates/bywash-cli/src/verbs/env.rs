//! `bywash env`: shell lines that point S3 clients at the server of a data folder.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::failure::Failure;
use crate::output::{Output, written};
use crate::serve::data_dir::{DEFAULT_DATA_DIR, Session};

/// Print export lines for S3 clients: eval "$(bywash env)"
///
/// They name the endpoint and the credentials of the server that uses the data folder, or used it
/// last. With --json, one document: each variable with its value.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The server's data folder
    #[arg(long, value_name = "DIR", default_value = DEFAULT_DATA_DIR)]
    data_dir: PathBuf,
    #[command(flatten)]
    pub(crate) output: Output,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    use std::io::Write;

    let session = Session::read(&args.data_dir)?;
    if args.output.json {
        let values: BTreeMap<_, _> = variables(&session).into_iter().collect();
        return args.output.line(&values, String::new);
    }
    written(
        std::io::stdout()
            .lock()
            .write_all(lines(&session).as_bytes()),
    )
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

fn lines(session: &Session) -> String {
    variables(session)
        .into_iter()
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
