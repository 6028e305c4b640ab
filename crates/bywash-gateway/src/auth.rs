//! Authorisation of signed and unsigned requests.

use std::sync::Arc;

use bywash::Engine;
use http::{Extensions, HeaderMap, Method};
use s3s::{S3ErrorCode, S3Result};

use crate::body::RequestContext;
use crate::bucket_rules::AllRules;
use crate::copy_source::CopySource;
use crate::errors::fault;
use crate::host::Target;
use crate::public_access::UnsignedAccess;
use crate::sigv4::keys::Signatory;

/// Decides which requests are served.
#[derive(Clone, Copy)]
pub(crate) struct Rights<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) rules: &'a AllRules,
}

/// Name of the operation of a request, in its extensions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OperationName(pub(crate) &'static str);

/// In the extensions of an unsigned request that is served.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unsigned {
    /// Whether it may read an object only if the ACL of the object says so.
    pub(crate) by_object: bool,
}

impl Rights<'_> {
    /// Authorises a request, and stores the key's scope in `extensions` for operations that filter buckets. `signatory`: `None`
    /// of an unsigned request.
    pub(crate) fn check(
        self,
        signatory: Option<&Signatory>,
        method: &Method,
        bucket: Option<&str>,
        headers: &HeaderMap,
        extensions: &mut Extensions,
    ) -> S3Result<()> {
        let Some(Signatory { access_key, scope }) = signatory else {
            return self.check_unsigned(bucket, extensions);
        };
        if let Some(context) = extensions.get::<Arc<RequestContext>>() {
            context.note_requester(access_key);
        }
        // In S3 these two methods change nothing.
        if scope.read_only && !matches!(*method, Method::GET | Method::HEAD) {
            return Err(denied("This key may only read; sign with another."));
        }
        // A source that cannot be parsed is rejected later.
        let source = CopySource::of(headers).ok().flatten();
        let source_is_seen = source.is_none_or(|source| scope.sees(&source.bucket));
        if bucket.is_some_and(|bucket| !scope.sees(bucket)) || !source_is_seen {
            return Err(denied(
                "This key does not reach the bucket; sign with another.",
            ));
        }
        if let Some(target) = extensions.get::<Arc<Target>>() {
            // Checked last, so that unauthorised clients do not learn bucket names.
            target
                .check_host(|bucket| scope.sees(bucket) && self.engine.bucket(bucket).is_some())?;
        }
        extensions.insert(Arc::clone(scope));
        Ok(())
    }

    /// Authorises an unsigned request.
    fn check_unsigned(self, bucket: Option<&str>, extensions: &mut Extensions) -> S3Result<()> {
        let operation = extensions.get::<OperationName>().map(|name| name.0);
        let access = operation
            .zip(bucket)
            .map(|(operation, bucket)| self.rules.unsigned_access(self.engine, operation, bucket));
        let by_object = match access {
            Some(UnsignedAccess::Allowed) => false,
            Some(UnsignedAccess::ByObject) => true,
            Some(UnsignedAccess::Denied) | None => return Err(denied("A signature is required.")),
        };
        extensions.insert(Unsigned { by_object });
        match extensions.get::<Arc<Target>>() {
            Some(target) => target.check_host(|name| Some(name) == bucket),
            None => Ok(()),
        }
    }
}

pub(crate) fn denied(message: &'static str) -> s3s::S3Error {
    fault(S3ErrorCode::AccessDenied, message)
}
