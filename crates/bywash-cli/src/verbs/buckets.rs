//! `bywash mb`, `bywash rb`, and the list of buckets.

use std::path::Path as FsPath;

use http::Method;
use serde::{Deserialize, Serialize};

use crate::address::{Address, Scheme};
use crate::endpoint::Remote;
use crate::failure::Failure;
use crate::interrupt::or_interrupt;
use crate::output::Output;
use crate::url::Url;

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
        let region = args.remote.region(bucket)?;
        Ok(region.as_deref().map(create_body).unwrap_or_default())
    };
    let folder = |path: &FsPath| std::fs::create_dir(path);
    change(&args, ("make", "made"), folder, Method::PUT, body).await
}

/// The body of a request that creates a bucket in `region`.
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

/// Makes or removes a folder by `folder`, or a bucket by a request. `what`: the verb, and its past participle.
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
        let body = body(bucket)?;
        or_interrupt(args.remote.bucket_request(method, bucket, body, &what))
            .await
            .map_err(|failure| full(failure, bucket))?;
    }
    if args.output.json {
        args.output.line(
            &serde_json::json!({ done: location.to_string() }),
            String::new,
        )
    } else {
        Ok(())
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

/// Returns the buckets of the S3 endpoint, by name.
pub(crate) async fn list(remote: &Remote) -> Result<Vec<Bucket>, Failure> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Response {
        buckets: Buckets,
    }
    #[derive(Deserialize)]
    struct Buckets {
        #[serde(rename = "Bucket", default)]
        all: Vec<Bucket>,
    }
    let what = "cannot list the buckets";
    let request = remote.bucket_request(Method::GET, "", String::new(), what);
    let response: Response = quick_xml::de::from_str(&request.await?).map_err(|error| {
        Failure::failed(format!("{what}: the response is not understood: {error}"))
    })?;
    Ok(response.buckets.all)
}

/// A bucket in the response of the endpoint.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Bucket {
    pub(crate) name: String,
    pub(crate) creation_date: Option<String>,
}
