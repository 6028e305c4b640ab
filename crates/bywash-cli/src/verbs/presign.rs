//! `bywash presign`: a URL that reads or writes one object without credentials, for a while.

use std::time::Duration;

use bywash::origin::signed::PartUrls;
use bywash::time::parse_duration;
use chrono::{DateTime, SecondsFormat, Utc};
use http::{HeaderName, HeaderValue, Method};
use object_store::PutMultipartOptions;
use object_store::signer::SignedUrlOptions;
use serde::Serialize;

use crate::address::{Address, Scheme};
use crate::endpoint::{Endpoint, Remote};
use crate::failure::Failure;
use crate::interrupt::or_interrupt;
use crate::output::Output;
use crate::url::Url;

/// Max validity: signatures of S3 and Google's store are valid no longer.
const EXPIRES_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Print a URL that reads or writes one object without credentials, for a while
///
/// Everyone with the URL can use it: treat it as a secret. No request is sent, so the object need not exist. Only --parts
/// sends one, which begins an upload.
///
/// With --json, one line: url, method, expires. With --parts, always: object, upload_id, parts, complete, abort, list, head, expires,
/// min_part_bytes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// s3://bucket/key, gs://bucket/key or az://container/key
    #[arg(value_name = "WHAT")]
    location: Url,
    /// Method that the URL allows; POST, at gs://, begins one upload that can be resumed
    #[arg(long, value_enum, default_value_t = UrlMethod::Get)]
    method: UrlMethod,
    /// Begin an upload at s3://, and print URLs for so many of its parts, its completion and its abort, as JSON for
    /// `bywash cp FILE --parts`
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=10_000), conflicts_with = "method")]
    parts: Option<u16>,
    /// Sign for the parts of this upload, which was begun before, as when URLs have expired
    #[arg(long, value_name = "ID", requires = "parts")]
    upload_id: Option<String>,
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
    #[value(name = "POST", alias = "post")]
    Post,
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
    if let Some(count) = args.parts {
        let urls = or_interrupt(part_urls(&args, address, count)).await?;
        return args.output.line(&urls, || urls.to_json());
    }
    let (method, options) = match args.method {
        UrlMethod::Get => (Method::GET, SignedUrlOptions::new()),
        UrlMethod::Put => (Method::PUT, SignedUrlOptions::new()),
        UrlMethod::Post if address.scheme == Scheme::Gcs => {
            let resumable = HeaderName::from_static("x-goog-resumable");
            let start = HeaderValue::from_static("start");
            let options = SignedUrlOptions::new().with_signed_header(resumable, start);
            (Method::POST, options)
        }
        UrlMethod::Post => {
            return Err(Failure::usage(format!(
                "{address}: only gs:// has uploads that one POST begins; at s3:// use --parts, at az:// --method PUT"
            )));
        }
    };
    let (signer, path) = (args.remote.signer(address)?, address.object()?);
    let url = or_interrupt(async {
        let signed = signer.signed_url_opts(method.clone(), &path, args.expires, &options);
        let failed = |error| Failure::store(format!("cannot sign for {address}"), &error);
        signed.await.map_err(failed)
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

/// Begins an upload, unless there is one, and signs the URLs of its requests.
async fn part_urls(args: &Args, address: &Address, count: u16) -> Result<PartUrls, Failure> {
    if address.scheme != Scheme::S3 {
        return Err(Failure::usage(format!(
            "{address}: parts are signed at s3://; gs:// has --method POST, and a PUT of az:// allows blocks"
        )));
    }
    let failed = |error| Failure::store(format!("cannot sign for {address}"), &error);
    let (signer, path) = (args.remote.signer(address)?, address.object()?);
    let upload_id = match &args.upload_id {
        Some(id) => id.clone(),
        None => {
            let bucket = Endpoint::with_short_deadline(&args.remote).of(address)?;
            let begun = bucket.create_upload(&path, PutMultipartOptions::default());
            begun.await.map_err(failed)?
        }
    };
    let upload = ("uploadId", upload_id.as_str());
    let sign = async |method: Method, query: &[(&str, &str)]| -> Result<String, Failure> {
        let options = SignedUrlOptions::new().with_query(query.iter().copied());
        let signed = signer.signed_url_opts(method, &path, args.expires, &options);
        Ok(signed.await.map_err(failed)?.into())
    };
    let mut parts = Vec::with_capacity(usize::from(count));
    for number in 1..=count {
        let number = number.to_string();
        parts.push(sign(Method::PUT, &[("partNumber", &*number), upload]).await?);
    }
    let (mut list, page) = (Vec::new(), PartUrls::PAGE.to_string());
    for marker in (0..usize::from(count)).step_by(PartUrls::PAGE) {
        let marker = marker.to_string();
        let query = [
            ("max-parts", &*page),
            ("part-number-marker", &*marker),
            upload,
        ];
        list.push(sign(Method::GET, &query).await?);
    }
    let until = Utc::now() + args.expires;
    Ok(PartUrls {
        object: address.to_string(),
        parts,
        complete: sign(Method::POST, &[upload]).await?,
        abort: Some(sign(Method::DELETE, &[upload]).await?),
        list,
        head: Some(sign(Method::HEAD, &[]).await?),
        expires: Some(until.to_rfc3339_opts(SecondsFormat::Secs, true)),
        min_part_bytes: 5 << 20,
        upload_id,
    })
}
