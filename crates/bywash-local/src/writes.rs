//! Writes: the bytes of one object, from a connection into an upload.

use std::io;
use std::sync::Arc;

use bywash::{Bucket, Upload, UploadOptions, UploadToken, UploadWriter};
use bywash_client::message::{
    ErrorCode, Failure, Kind, Put, Reply, Request, Resume, Stored, Token, WriteMode, Writing,
};
use bywash_client::wire::Wire;
use bywash_gateway::RequestRecord;
use bywash_gateway::objects::{
    BodyMd5, ObjectCondition, ObjectOperation, attributes_for, etag_of_text, key_of,
};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use object_store::path::Path;
use object_store::{Attributes, Error as StoreError, PutMode};
use tokio::io::AsyncWriteExt;

use crate::door::Door;
use crate::failure::{failure, from_object};
use crate::frames::{Incoming, Outgoing, PayloadError};
use crate::limits::MAX_ATTRIBUTES;
use crate::operations::bucket;
use crate::record;

/// A write in progress. Dropping it discards the written bytes, unless it was captured.
struct Write {
    bucket: Bucket,
    key: String,
    /// `None` while the upload ends.
    writer: Option<UploadWriter>,
    condition: Option<ObjectCondition>,
    md5: Option<BodyMd5>,
    /// Whether a client has the token to continue it.
    captured: bool,
}

impl Drop for Write {
    fn drop(&mut self) {
        let Some(writer) = self.writer.take() else {
            return;
        };
        if self.captured {
            return;
        }
        // Without a runtime, at shutdown, the parts stay at the store, invisible.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        runtime.spawn(async move {
            let mut upload = writer.into_upload().await;
            if let Err(error) = upload.abort().await {
                tracing::warn!(?upload, %error, "abort of an unfinished write failed");
            }
        });
    }
}

/// Executes a write up to its end. Returns whether the connection can continue: after an error the
/// client may have sent data that nothing reads.
pub(crate) async fn run(
    door: &Arc<Door>,
    request: Request,
    incoming: &mut Incoming,
    outgoing: &mut Outgoing,
) -> io::Result<bool> {
    let (begun, mut record) = match request {
        Request::Put(put) => {
            let record = record::write(door, &put.bucket, &put.key);
            (Write::begin(door, put).await, record)
        }
        Request::Resume(resume) => {
            let bucket = resume.bucket.clone();
            let begun = Write::resume(door, resume).await;
            let key = begun.as_ref().map_or("", |begun| &begun.write.key);
            let record = record::write(door, &bucket, key);
            (begun, record)
        }
        _ => unreachable!("the caller passes these two"),
    };
    let written = match begun {
        Ok(write) => {
            outgoing.put(&Reply::Writing(Writing {
                position: write.position,
            }));
            outgoing.flush().await?;
            let received = write.write.receive(door, &mut record, incoming, outgoing);
            received.await?
        }
        Err(failure) => Err(failure),
    };
    match written {
        Ok(reply) => {
            outgoing.put(&reply);
            record.begin_response();
            record.end();
            Ok(true)
        }
        Err(failure) => {
            record::fail(&mut record, &failure);
            outgoing.put(&Reply::Error(failure));
            outgoing.flush().await?;
            Ok(false)
        }
    }
}

struct Begun {
    write: Write,
    position: u64,
}

fn doing<'a>(bucket: &'a str, key: &'a str) -> ObjectOperation<'a> {
    ObjectOperation {
        operation: "write",
        bucket,
        key,
    }
}

/// Converts the error of a write with a condition.
fn failed_write(
    condition: &ObjectCondition,
    doing: &ObjectOperation<'_>,
    error: &StoreError,
) -> Failure {
    refused_write(condition, from_object(condition.error(doing, error)))
}

/// Names the failure of a write that was to create its object.
pub(crate) fn refused_write(condition: &ObjectCondition, mut failure: Failure) -> Failure {
    if failure.code == ErrorCode::Precondition && condition.mode() == PutMode::Create {
        failure.code = ErrorCode::AlreadyExists;
    }
    failure
}

/// Looks up the condition of a write.
pub(crate) async fn condition_of(
    doing: &ObjectOperation<'_>,
    bucket: &Bucket,
    path: &Path,
    mode: &WriteMode,
) -> Result<ObjectCondition, Failure> {
    let (if_match, create) = match mode {
        WriteMode::Overwrite(()) => (None, false),
        WriteMode::Create(()) => (None, true),
        WriteMode::IfMatch(etag) => (Some(etag.as_str()), false),
    };
    let found = ObjectCondition::find(doing, bucket, path, if_match, create).await;
    found.map_err(from_object)
}

impl Write {
    async fn begin(door: &Door, put: Put) -> Result<Begun, Failure> {
        let bucket = bucket(door, &put.bucket)?;
        let doing = doing(&put.bucket, &put.key);
        let path = doing.path().map_err(from_object)?;
        let attributes = attributes(&bucket, &put)?;
        let condition = condition_of(&doing, &bucket, &path, &put.mode).await?;
        let options = UploadOptions {
            mode: condition.mode(),
            attributes,
            length: put.length,
            chunk: Some(put.chunk).filter(|chunk| *chunk > 0),
            // One in pieces may be captured, and continued at another start of the server.
            transient: put.length.is_some(),
            ..UploadOptions::default()
        };
        let upload = bucket.upload(&path, options).await;
        let upload = upload.map_err(|error| failed_write(&condition, &doing, &error))?;
        let write = Self {
            md5: BodyMd5::begin(&bucket, door.config.etag),
            bucket,
            key: put.key,
            writer: Some(upload.into_writer()),
            condition: Some(condition),
            captured: false,
        };
        Ok(Begun { write, position: 0 })
    }

    async fn resume(door: &Door, resume: Resume) -> Result<Begun, Failure> {
        let bucket = bucket(door, &resume.bucket)?;
        let doing = doing(&resume.bucket, "");
        let token = UploadToken::from_bytes(resume.token.into());
        let token =
            token.map_err(|error| failure(ErrorCode::InvalidArgument, error.to_string()))?;
        let restored = bucket.restore_upload(&token).await;
        let upload = restored.map_err(|error| from_object(doing.error(&error)))?;
        let position = upload.position();
        let write = Self {
            key: key_of(token.path()).into_owned(),
            bucket,
            writer: Some(upload.into_writer()),
            condition: None,
            // The bytes before are not here.
            md5: None,
            captured: true,
        };
        Ok(Begun { write, position })
    }

    /// Receives data until the write ends. The inner error is the reply.
    async fn receive(
        mut self,
        door: &Door,
        record: &mut RequestRecord,
        incoming: &mut Incoming,
        outgoing: &mut Outgoing,
    ) -> io::Result<Result<Reply, Failure>> {
        loop {
            let Some(head) = incoming.head().await? else {
                return Err(io::ErrorKind::UnexpectedEof.into());
            };
            if head.kind == Kind::Data {
                if let Err(failure) = self.take_data(incoming, head.len as usize).await? {
                    return Ok(Err(failure));
                }
                record.count_received(head.len.into());
                continue;
            }
            let payload = match incoming.payload(head, &door.engine).await {
                Ok(payload) => payload,
                Err(PayloadError::Io(error)) => return Err(error),
                Err(PayloadError::NoMemory) => {
                    let message = "no memory for a request of this length";
                    return Ok(Err(failure(ErrorCode::SlowDown, message)));
                }
            };
            let ended = match Request::decode(&payload.bytes) {
                Ok(Request::Finish(())) => self.finish().await,
                Ok(Request::Abort(())) => self.abort().await,
                Ok(Request::Capture(())) => match self.capture().await {
                    Ok(token) => {
                        outgoing.put(&Reply::Token(token));
                        outgoing.flush().await?;
                        continue;
                    }
                    Err(failure) => Err(failure),
                },
                _ => Err(failure(
                    ErrorCode::Protocol,
                    "a write takes data, its capture and its end; install the same release of client and server",
                )),
            };
            return Ok(ended);
        }
    }

    async fn take_data(
        &mut self,
        incoming: &mut Incoming,
        mut left: usize,
    ) -> io::Result<Result<(), Failure>> {
        while left > 0 {
            let bytes = incoming.some(left).await?;
            let count = bytes.len();
            if let Some(md5) = &mut self.md5 {
                md5.update(bytes);
            }
            let writer = self.writer.as_mut().expect("the write has not ended");
            if let Err(error) = writer.write_all(bytes).await {
                return Ok(Err(self.failed_io(error)));
            }
            incoming.taken(count);
            left -= count;
        }
        Ok(Ok(()))
    }

    fn failed(&self, error: &StoreError) -> Failure {
        let doing = doing(self.bucket.name(), &self.key);
        match &self.condition {
            Some(condition) => failed_write(condition, &doing, error),
            None => from_object(doing.error(error)),
        }
    }

    /// The upload's error inside one of its writer.
    fn failed_io(&self, error: io::Error) -> Failure {
        match error.downcast::<StoreError>() {
            Ok(error) => self.failed(&error),
            Err(error) => failure(ErrorCode::Unavailable, error.to_string()),
        }
    }

    /// Takes the upload out of its writer.
    async fn upload(&mut self) -> Upload {
        let writer = self.writer.take().expect("a write ends once");
        writer.into_upload().await
    }

    async fn finish(&mut self) -> Result<Reply, Failure> {
        let mut upload = self.upload().await;
        if let Some(md5) = self.md5.take() {
            upload.add_attributes(&md5.finish());
        }
        let finished = upload.finish().await;
        let put = finished.map_err(|error| self.failed(&error))?.put;
        Ok(Reply::Stored(Stored {
            etag: put.e_tag.as_deref().map(etag_of_text).map(str::to_owned),
            version: put.version,
        }))
    }

    async fn abort(&mut self) -> Result<Reply, Failure> {
        let mut upload = self.upload().await;
        upload.abort().await.map_err(|error| self.failed(&error))?;
        Ok(Reply::Done(()))
    }

    async fn capture(&mut self) -> Result<Token, Failure> {
        let mut upload = self.upload().await;
        let settled = upload.settle().await;
        let token = upload.capture().without_waiting();
        self.writer = Some(upload.into_writer());
        settled.map_err(|error| self.failed(&error))?;
        let bytes = token.to_bytes();
        let bytes = bytes.map_err(|error| {
            let doing = doing(self.bucket.name(), &self.key);
            from_object(doing.engine_error(&error))
        })?;
        self.captured = true;
        Ok(Token {
            token: bytes,
            position: token.acknowledged(),
        })
    }
}

/// Converts the attributes of a write.
fn attributes(bucket: &Bucket, put: &Put) -> Result<Attributes, Failure> {
    let wrong = |what: &str| {
        let message = format!("write {}/{}: {what}", put.bucket, put.key);
        failure(ErrorCode::InvalidArgument, message)
    };
    if put.attributes.len() > MAX_ATTRIBUTES {
        return Err(wrong(&format!("more than {MAX_ATTRIBUTES} attributes")));
    }
    let mut headers = HeaderMap::new();
    for pair in &put.attributes {
        let name = HeaderName::try_from(pair.name.as_str());
        let value = HeaderValue::from_bytes(pair.value.as_bytes());
        let (Ok(name), Ok(value)) = (name, value) else {
            return Err(wrong(&format!(
                "the attribute {:?} is no header",
                pair.name
            )));
        };
        headers.insert(name, value);
    }
    attributes_for(bucket, &headers).map_err(from_object)
}
