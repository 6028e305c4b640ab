//! `bywash presign`: a URL that reads or writes one object without credentials, for a while.

use std::time::Duration;

use bywash::time::parse_duration;
use chrono::{DateTime, SecondsFormat, Utc};
use http::Method;
use serde::Serialize;

use crate::endpoint::Remote;
use crate::failure::Failure;
use crate::interrupt::or_interrupt;
use crate::output::Output;
use crate::url::Url;

/// Max validity: signatures of S3 and Google's store are valid no longer.
const EXPIRES_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Print a URL that reads or writes one object without credentials, for a while
///
/// Everyone with the URL can use it: treat it as a secret. No request is sent, so the object need not exist.
///
/// With --json, one line: url, method, expires.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// s3://bucket/key, gs://bucket/key or az://container/key
    #[arg(value_name = "WHAT")]
    location: Url,
    /// Method that the URL allows
    #[arg(long, value_enum, default_value_t = UrlMethod::Get)]
    method: UrlMethod,
    /// Validity: 90s, 30m, 12h, at most 7d
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_duration)]
    expires: Duration,
    #[command(flatten)]
    remote: Remote,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum UrlMethod {
    #[value(name = "GET", alias = "get")]
    Get,
    #[value(name = "PUT", alias = "put")]
    Put,
}

#[derive(Debug, Serialize)]
struct Signed {
    url: String,
    method: String,
    expires: DateTime<Utc>,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    if args.expires > EXPIRES_MAX || args.expires.as_secs() == 0 {
        return Err(Failure::usage("--expires is 1s to 7d"));
    }
    let Url::Object(address) = &args.location else {
        return Err(Failure::usage(format!(
            "{} cannot be signed for; write s3://bucket/key",
            args.location
        )));
    };
    let method = match args.method {
        UrlMethod::Get => Method::GET,
        UrlMethod::Put => Method::PUT,
    };
    let (signer, path) = (args.remote.signer(address)?, address.object()?);
    let url = or_interrupt(async {
        let signed = signer.signed_url(method.clone(), &path, args.expires).await;
        signed.map_err(|error| Failure::store(format!("cannot sign for {address}"), &error))
    })
    .await?;
    let signed = Signed {
        url: url.into(),
        method: method.to_string(),
        expires: Utc::now() + args.expires,
    };
    args.output.line(&signed, || signed.url.clone())?;
    if !args.output.json {
        let until = signed.expires.to_rfc3339_opts(SecondsFormat::Secs, true);
        tracing::info!("valid until {until}");
    }
    Ok(())
}
