//! `bywash mb`, `bywash rb`, and the list of buckets: what S3 clients of objects lack.

use std::path::Path as FsPath;
use std::time::Duration;

use bywash::origin::client_builder;
use http::Method;
use object_store::aws::AmazonS3ConfigKey;
use object_store::path::Path;
use object_store::signer::Signer;
use serde::{Deserialize, Serialize};

use crate::address::{Address, Scheme};
use crate::endpoint::Remote;
use crate::failure::{Failure, Kind};
use crate::limits::MAX_RESPONSE_BYTES;
use crate::output::Output;
use crate::progress::or_interrupt;
use crate::url::Url;

/// How long the signature of a request made here holds.
const SIGNED_FOR: Duration = Duration::from_secs(60);
/// An answer about a bucket is small; one that stays out this long does not come.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Where buckets need no word on their region.
const DEFAULT_REGION: &str = "us-east-1";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// s3://bucket, or a folder's path
    #[arg(value_name = "WHAT")]
    location: Url,
    #[command(flatten)]
    remote: Remote,
    #[command(flatten)]
    pub(crate) output: Output,
}

pub(crate) async fn make(args: Args) -> Result<(), Failure> {
    let body = |bucket: &str| {
        let builder = args.remote.builder(bucket)?;
        let region = builder.get_config_value(&AmazonS3ConfigKey::Region);
        let region = region.filter(|region| region != DEFAULT_REGION);
        Ok(region.as_deref().map(create_body).unwrap_or_default())
    };
    let folder = |path: &FsPath| std::fs::create_dir(path);
    change(&args, ("make", "made"), folder, Method::PUT, body).await
}

/// The body of a request that makes a bucket in `region`.
fn create_body(region: &str) -> String {
    #[derive(Serialize)]
    struct CreateBucketConfiguration<'a> {
        #[serde(rename = "@xmlns")]
        namespace: &'static str,
        #[serde(rename = "LocationConstraint")]
        region: &'a str,
    }
    let document = CreateBucketConfiguration {
        namespace: "http://s3.amazonaws.com/doc/2006-03-01/",
        region,
    };
    quick_xml::se::to_string(&document).expect("strings are XML")
}

pub(crate) async fn remove(args: Args) -> Result<(), Failure> {
    let folder = |path: &FsPath| std::fs::remove_dir(path);
    let body = |_: &str| Ok(String::new());
    change(&args, ("remove", "removed"), folder, Method::DELETE, body).await
}

/// Does it to a folder, or asks for it. `what` is what it is called, before and after.
async fn change(
    args: &Args,
    what: (&str, &str),
    folder: impl Fn(&FsPath) -> std::io::Result<()>,
    method: Method,
    body: impl Fn(&str) -> Result<String, Failure>,
) -> Result<(), Failure> {
    let (location, (verb, done)) = (&args.location, what);
    let what = format!("cannot {verb} {location}");
    if let Url::File(path) = location {
        folder(path).map_err(|error| Failure::io(&what, &error))?;
    } else {
        let bucket = bucket(location)?;
        let asked = ask(method, bucket, body(bucket)?, &args.remote, &what);
        or_interrupt(asked)
            .await
            .map_err(|failure| full(failure, bucket))?;
    }
    match args.output.json {
        true => args.output.line(
            &serde_json::json!({ done: location.to_string() }),
            String::new,
        ),
        false => Ok(()),
    }
}

fn full(mut failure: Failure, bucket: &str) -> Failure {
    if failure.message.contains("BucketNotEmpty") {
        failure.message = format!(
            "{}; to empty it: bywash rm -r --force s3://{bucket}",
            failure.message
        );
    }
    failure
}

fn bucket(location: &Url) -> Result<&str, Failure> {
    match location {
        Url::Object(Address {
            scheme: Scheme::S3,
            bucket,
            key,
            ..
        }) if key.is_empty() => Ok(bucket),
        Url::Object(Address {
            scheme: Scheme::Gcs | Scheme::Azure,
            ..
        }) => Err(Failure::usage(format!(
            "{location}: buckets of this kind belong to a project or an account; use gcloud or az"
        ))),
        other => Err(Failure::usage(format!(
            "{other} names no bucket; write s3://bucket or a folder's path"
        ))),
    }
}

/// The buckets of the S3 endpoint, by name.
pub(crate) async fn list(remote: &Remote) -> Result<Vec<Bucket>, Failure> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Answer {
        buckets: Buckets,
    }
    #[derive(Deserialize)]
    struct Buckets {
        #[serde(rename = "Bucket", default)]
        all: Vec<Bucket>,
    }
    let what = "cannot list the buckets";
    let answer = ask(Method::GET, "", String::new(), remote, what).await?;
    let answer: Answer = quick_xml::de::from_str(&answer).map_err(|error| {
        Failure::failed(format!("{what}: the answer is not understood: {error}"))
    })?;
    Ok(answer.buckets.all)
}

/// A bucket, as the endpoint lists it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Bucket {
    pub(crate) name: String,
    pub(crate) creation_date: Option<String>,
}

/// One request about a bucket, or about the endpoint if that is empty; returns the answer's body.
async fn ask(
    method: Method,
    bucket: &str,
    body: String,
    remote: &Remote,
    what: &str,
) -> Result<String, Failure> {
    let url = signed(method.clone(), bucket, remote, what).await?;
    let unsent = |error: reqwest::Error| {
        let kind = match error.is_connect() || error.is_timeout() {
            true => Kind::Unreachable,
            false => Kind::Failed,
        };
        // The address bears a signature.
        Failure::new(
            kind,
            format!(
                "{what}: {}; check --endpoint or AWS_ENDPOINT_URL, and that the server runs",
                error.without_url()
            ),
        )
    };
    let client = client_builder().timeout(ANSWER_TIMEOUT).build();
    let sent = client
        .map_err(unsent)?
        .request(method, url)
        .body(body)
        .send();
    let mut answer = sent.await.map_err(unsent)?;
    let status = answer.status();
    let mut body = Vec::new();
    while let Some(piece) = answer.chunk().await.map_err(unsent)? {
        if body.len() + piece.len() > MAX_RESPONSE_BYTES {
            return Err(Failure::failed(format!(
                "{what}: the endpoint sent more than {} MiB; check --endpoint",
                MAX_RESPONSE_BYTES >> 20
            )));
        }
        body.extend_from_slice(&piece);
    }
    let text = String::from_utf8_lossy(&body).into_owned();
    match status.is_success() {
        true => Ok(text),
        false => Err(Failure::answer(what, status, &text)),
    }
}

/// The address of a bucket with a signature in it; without one where requests are not signed.
async fn signed(
    method: Method,
    bucket: &str,
    remote: &Remote,
    what: &str,
) -> Result<url::Url, Failure> {
    let failed = |error| Failure::store(what, &error);
    let mut builder = remote.builder(if bucket.is_empty() { "any" } else { bucket })?;
    let endpoint = remote.endpoint().map(String::from).unwrap_or_else(|| {
        let region = builder.get_config_value(&AmazonS3ConfigKey::Region);
        let region = region.unwrap_or_else(|| DEFAULT_REGION.to_owned());
        format!("https://s3.{region}.amazonaws.com")
    });
    let endpoint = endpoint.trim_end_matches('/');
    let skip = builder.get_config_value(&AmazonS3ConfigKey::SkipSignature);
    if skip.as_deref() == Some("true") {
        let url = format!("{endpoint}/{bucket}");
        return url::Url::parse(&url)
            .map_err(|error| Failure::usage(format!("{what}: {url}: {error}")));
    }
    if bucket.is_empty() {
        // What is signed is the endpoint itself, as if it were a bucket's own host.
        builder = builder
            .with_config(AmazonS3ConfigKey::S3Endpoint, endpoint)
            .with_virtual_hosted_style_request(true);
    }
    let client = builder.build().map_err(failed)?;
    let url = client.signed_url(method, &Path::ROOT, SIGNED_FOR).await;
    url.map_err(failed)
}
