//! PutBucketCors, GetBucketCors, DeleteBucketCors.

use http::StatusCode;
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response, S3Result};

use crate::cors::CorsRule;
use crate::errors::{WithElements, custom, fault};
use crate::gateway::Gateway;
use crate::limits::MAX_CORS_RULES;

fn from_client(rule: CORSRule) -> CorsRule {
    CorsRule {
        id: rule.id,
        origins: rule.allowed_origins,
        methods: rule.allowed_methods,
        headers: rule.allowed_headers.unwrap_or_default(),
        exposed: rule.expose_headers.unwrap_or_default(),
        max_age_s: rule.max_age_seconds,
    }
}

fn to_client(rule: &CorsRule) -> CORSRule {
    let list = |values: &Vec<String>| Some(values.clone()).filter(|values| !values.is_empty());
    CORSRule {
        id: rule.id.clone(),
        allowed_origins: rule.origins.clone(),
        allowed_methods: rule.methods.clone(),
        allowed_headers: list(&rule.headers),
        expose_headers: list(&rule.exposed),
        max_age_seconds: rule.max_age_s,
    }
}

pub(crate) async fn put(
    gateway: &Gateway,
    request: S3Request<PutBucketCorsInput>,
) -> S3Result<S3Response<PutBucketCorsOutput>> {
    let input = request.input;
    gateway.bucket(&input.bucket)?;
    let rules = input.cors_configuration.cors_rules;
    if rules.is_empty() || rules.len() > MAX_CORS_RULES {
        let message = format!(
            "The request has {} rules; send 1 to {MAX_CORS_RULES}.",
            rules.len()
        );
        return Err(fault(S3ErrorCode::MalformedXML, message));
    }
    let rules: Vec<_> = rules.into_iter().map(from_client).collect();
    rules.iter().try_for_each(CorsRule::check)?;
    let keep = gateway
        .rules
        .change(&input.bucket, |kept| kept.cors = rules);
    keep.await?;
    Ok(S3Response::new(PutBucketCorsOutput {}))
}

pub(crate) async fn get(
    gateway: &Gateway,
    request: S3Request<GetBucketCorsInput>,
) -> S3Result<S3Response<GetBucketCorsOutput>> {
    let name = &request.input.bucket;
    gateway.bucket(name)?;
    let rules = gateway.rules.read_of(name).await?;
    if rules.cors.is_empty() {
        let message = format!("The bucket {name} has no CORS configuration.");
        let code = "NoSuchCORSConfiguration";
        let error = custom(code, StatusCode::NOT_FOUND, message);
        return Err(error.with([("BucketName", name)]));
    }
    Ok(S3Response::new(GetBucketCorsOutput {
        cors_rules: Some(rules.cors.iter().map(to_client).collect()),
    }))
}

pub(crate) async fn delete(
    gateway: &Gateway,
    request: S3Request<DeleteBucketCorsInput>,
) -> S3Result<S3Response<DeleteBucketCorsOutput>> {
    let name = &request.input.bucket;
    gateway.bucket(name)?;
    let keep = gateway.rules.change(name, |kept| kept.cors = Vec::new());
    keep.await?;
    Ok(S3Response::new(DeleteBucketCorsOutput {}))
}
