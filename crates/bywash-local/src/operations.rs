//! Requests with one reply.

use std::sync::Arc;
use std::time::Duration;

use bywash::{Bucket, EngineError, LocalStatsSource};
use bywash_client::limits::MAX_DELETE_KEYS;
use bywash_client::message::{
    Attach, BucketEntry, Copy, Delete, ErrorCode, Failure, Head, List, ObjectHead, ObjectInfo,
    Page, Pair, Reply, Request, Sign, Undeleted,
};
use bywash_gateway::objects::{
    self, ObjectCopy, ObjectOperation, ObjectScope, PageCharge, check_etags, etag_of, headers_of,
};
use object_store::{GetOptions, ObjectMeta, ObjectStore};
use tokio::time::timeout_at;

use crate::connection::deadline;
use crate::door::Door;
use crate::failure::{failure, from_object};
use crate::limits::MAX_SIGNED_TIME;
use crate::writes::{condition_of, refused_write};

/// A reply, and the charge for it.
type Replied = Result<(Reply, Option<PageCharge>), Failure>;

/// Executes a request with one reply.
pub(crate) async fn reply(door: &Arc<Door>, request: Request) -> Replied {
    let reply = match request {
        Request::Buckets(()) => buckets(door),
        Request::Attach(attach) => attached(door, attach).await?,
        Request::List(list) => return page(door, list).await,
        Request::Head(head) => self::head(door, head).await?,
        Request::Status(()) => status(door),
        Request::Sign(sign) => signed(door, &sign)?,
        Request::Copy(copy) => copied(door, copy).await?,
        Request::Delete(delete) => deleted(door, delete).await?,
        Request::MakeBucket(name) => made(door, name).await?,
        Request::RemoveBucket(name) => removed(door, &name).await?,
        _ => {
            let message = "a request without its beginning: there is no write in progress";
            return Err(failure(ErrorCode::InvalidArgument, message));
        }
    };
    Ok((reply, None))
}

/// Returns a bucket by name.
pub(crate) fn bucket(door: &Door, name: &str) -> Result<Bucket, Failure> {
    door.engine.bucket(name).ok_or_else(|| {
        let error = EngineError::NoSuchBucket(name.to_owned());
        failure(ErrorCode::NoSuchBucket, error.to_string())
    })
}

fn buckets(door: &Door) -> Reply {
    let entry = |name: String| BucketEntry {
        kind: door
            .engine
            .open_bucket(&name)
            .map_or("folder", |bucket| bucket.origin_kind())
            .to_owned(),
        name,
    };
    let buckets = door.engine.buckets().into_iter();
    Reply::Buckets(buckets.map(|bucket| entry(bucket.name)).collect())
}

async fn copied(door: &Door, copy: Copy) -> Result<Reply, Failure> {
    let from_bucket = bucket(door, &copy.from_bucket)?;
    let to_bucket = bucket(door, &copy.to_bucket)?;
    let to = ObjectOperation {
        operation: "copy to",
        bucket: &copy.to_bucket,
        key: &copy.to_key,
    };
    let from = ObjectOperation {
        operation: "copy from",
        bucket: &copy.from_bucket,
        key: &copy.from_key,
    };
    let work = async {
        let path = to.path().map_err(from_object)?;
        let condition = condition_of(&to, &to_bucket, &path, &copy.mode).await?;
        let work = ObjectCopy {
            from,
            from_bucket: &from_bucket,
            from_etag: copy.from_etag.as_deref(),
            to,
            to_bucket: &to_bucket,
            condition: &condition,
            style: door.config.etag,
        };
        let done = work.run().await;
        done.map_err(|error| refused_write(&condition, from_object(error)))
    };
    let done = timeout_at(deadline(copy.deadline_ms), work).await;
    done.map_err(|_| late("copy", &copy.from_bucket, &copy.from_key))??;
    Ok(Reply::Done(()))
}

async fn made(door: &Arc<Door>, name: String) -> Result<Reply, Failure> {
    let engine = door.engine.clone();
    // It makes a folder.
    let made = tokio::task::spawn_blocking(move || engine.create_bucket(&name)).await;
    match made {
        Ok(Ok(_)) => Ok(Reply::Done(())),
        Ok(Err(error)) => Err(of_bucket(&error)),
        Err(error) => Err(failure(ErrorCode::Unavailable, error.to_string())),
    }
}

async fn removed(door: &Door, name: &str) -> Result<Reply, Failure> {
    let removed = door.config.shared.remove_bucket(&door.engine, name).await;
    removed.map_err(from_object)?;
    Ok(Reply::Done(()))
}

/// Converts the error of a change of buckets.
fn of_bucket(error: &EngineError) -> Failure {
    let code = match error {
        EngineError::BucketExists(_) => ErrorCode::AlreadyExists,
        EngineError::NoSuchBucket(_) => ErrorCode::NoSuchBucket,
        EngineError::InvalidBucketName { .. } => ErrorCode::InvalidArgument,
        EngineError::NoRoot(_) => ErrorCode::Unsupported,
        _ => ErrorCode::Unavailable,
    };
    failure(code, error.to_string())
}

async fn attached(door: &Arc<Door>, attach: Attach) -> Result<Reply, Failure> {
    let attacher = Arc::clone(&door.config.attacher);
    let options = attach.options.into_iter();
    let options: Vec<_> = options.map(|Pair { name, value }| (name, value)).collect();
    // It may open folders and files of credentials.
    let attached = tokio::task::spawn_blocking(move || attacher.attach(&attach.address, &options));
    match attached.await {
        Ok(Ok(bucket)) => Ok(Reply::Attached(bucket.name().to_owned())),
        Ok(Err(error)) => Err(failure(ErrorCode::InvalidArgument, error.to_string())),
        Err(error) => Err(failure(ErrorCode::Unavailable, error.to_string())),
    }
}

async fn page(door: &Door, list: List) -> Replied {
    let bucket = bucket(door, &list.bucket)?;
    let scope = ObjectScope {
        prefix: &list.prefix,
        delimiter: &list.delimiter,
        after: Some(list.after.as_str()).filter(|after| !after.is_empty()),
        limit: match list.limit {
            0 => usize::MAX,
            limit => limit as usize,
        },
    };
    let page = timeout_at(
        deadline(list.deadline_ms),
        door.listings.page(&bucket, scope),
    )
    .await;
    let late = || late("list", &list.bucket, &list.prefix);
    let (page, charge) = page.map_err(|_| late())?.map_err(from_object)?;
    let objects = page
        .objects
        .iter()
        .map(|(key, meta)| object_info(key, meta));
    let reply = Reply::Page(Page {
        objects: objects.collect(),
        prefixes: page.prefixes,
        next: page.next.unwrap_or_default(),
        left_out: page.left_out,
    });
    Ok((reply, Some(charge)))
}

async fn head(door: &Door, head: Head) -> Result<Reply, Failure> {
    let bucket = bucket(door, &head.bucket)?;
    let doing = ObjectOperation {
        operation: "read",
        bucket: &head.bucket,
        key: &head.key,
    };
    let path = doing.stored_path(&bucket).map_err(from_object)?;
    let options = GetOptions {
        head: true,
        version: head.conditions.version.clone(),
        ..GetOptions::default()
    };
    let found = timeout_at(deadline(head.deadline_ms), bucket.get_opts(&path, options)).await;
    let found = found.map_err(|_| late("read", &head.bucket, &head.key))?;
    let found = found.map_err(|error| from_object(doing.error(&error)))?;
    let (matched, unmatched) = (&head.conditions.if_match, &head.conditions.if_none_match);
    check_etags(
        &doing,
        &found.meta,
        matched.as_deref(),
        unmatched.as_deref(),
    )
    .map_err(from_object)?;
    let headers = headers_of(&found);
    let attributes = headers.iter().map(|(name, value)| Pair {
        name: name.as_str().to_owned(),
        value: String::from_utf8_lossy(value.as_bytes()).into_owned(),
    });
    Ok(Reply::Head(ObjectHead {
        object: object_info(&head.key, &found.meta),
        attributes: attributes.collect(),
    }))
}

async fn deleted(door: &Door, delete: Delete) -> Result<Reply, Failure> {
    let bucket = bucket(door, &delete.bucket)?;
    let Delete { keys, if_match, .. } = &delete;
    if keys.is_empty() || keys.len() > MAX_DELETE_KEYS || (if_match.is_some() && keys.len() > 1) {
        let message = format!(
            "delete {} keys of {}: a request has 1 to {MAX_DELETE_KEYS} keys, and one with a condition has 1",
            keys.len(),
            delete.bucket
        );
        return Err(failure(ErrorCode::InvalidArgument, message));
    }
    let deletes = objects::delete(&bucket, keys, if_match.as_deref());
    let deletes = timeout_at(deadline(delete.deadline_ms), deletes).await;
    let deletes = deletes.map_err(|_| late("delete", &delete.bucket, &keys[0]))?;
    let failed = keys.iter().zip(deletes).filter_map(|(key, deleted)| {
        let failure = from_object(deleted.err()?);
        let key = key.clone();
        Some(Undeleted { key, failure })
    });
    Ok(Reply::Deleted(failed.collect()))
}

fn status(door: &Door) -> Reply {
    let json = serde_json::to_string(&door.local_stats());
    Reply::Status(json.unwrap_or_default())
}

fn signed(door: &Door, sign: &Sign) -> Result<Reply, Failure> {
    let Sign {
        bucket: name,
        key,
        method,
        expires_s,
    } = sign;
    let doing = ObjectOperation {
        operation: "sign",
        bucket: name,
        key,
    };
    let (bucket, path) = (bucket(door, name)?, doing.path().map_err(from_object)?);
    let expires = Duration::from_secs((*expires_s).into());
    if expires.is_zero() || expires > MAX_SIGNED_TIME {
        let message = format!(
            "sign {method} of {name}/{key}: an address is good for 1 s to 7 days, not {expires_s} s"
        );
        return Err(failure(ErrorCode::InvalidArgument, message));
    }
    let signed = door
        .config
        .attacher
        .sign(bucket.name(), &path, method, expires);
    signed.map(Reply::Signed).ok_or_else(|| {
        let message = format!("sign {method} of {name}/{key}: only GET, HEAD, PUT and DELETE are signed for, by a server with a key (not --anonymous)");
        failure(ErrorCode::Unsupported, message)
    })
}

/// Returns an object's metadata as clients get it.
pub(crate) fn object_info(key: &str, meta: &ObjectMeta) -> ObjectInfo {
    ObjectInfo {
        key: key.to_owned(),
        size: meta.size,
        modified_s: meta.last_modified.timestamp(),
        modified_ns: meta.last_modified.timestamp_subsec_nanos(),
        etag: etag_of(meta).map(str::to_owned),
        version: meta.version.clone(),
        weak: meta
            .e_tag
            .as_deref()
            .is_some_and(|tag| tag.starts_with("W/")),
    }
}

/// The error of a request at its deadline.
pub(crate) fn late(operation: &str, bucket: &str, key: &str) -> Failure {
    let message = format!(
        "{operation} {bucket}/{key}: not done within the deadline of the request; give a longer one, or see `bywash local status`"
    );
    failure(ErrorCode::Deadline, message)
}
