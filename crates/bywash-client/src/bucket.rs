//! Calls on one bucket.

use std::ops::Range;
use std::time::{Duration, SystemTime};

use crate::client::{Client, reply};
use crate::connection::{Connection, unexpected};
use crate::error::{Error, Result};
use crate::get::{self, GetOptions, Object, Ranges, byte_range};
use crate::limits::{MAX_DATA_BYTES, MAX_DELETE_KEYS};
use crate::message::{
    ByteRange, Conditions, Copy, Delete, Head, List, ObjectHead, ObjectInfo, Pair, Put, Reply,
    Request, Sign, Stored, Undeleted, WriteMode,
};
use crate::pending::{Pending, other};
use crate::writer::Writer;

/// A bucket of the server. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Bucket {
    client: Client,
    name: String,
}

/// Metadata of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    /// The key.
    pub key: String,
    /// Bytes.
    pub size: u64,
    /// Date of the last change.
    pub modified: SystemTime,
    /// ETag, if the origin has one.
    pub etag: Option<String>,
    /// Whether the ETag is weak: equal ETags do not mean equal bytes.
    pub weak_etag: bool,
    /// Version or generation, if the origin has one.
    pub version: Option<String>,
    /// Content headers, and metadata with the prefix `x-amz-meta-`. Empty in listings.
    pub attributes: Vec<(String, String)>,
}

/// A page of a listing, in the order of keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListPage {
    /// Objects.
    pub objects: Vec<Metadata>,
    /// Keys cut after the delimiter.
    pub prefixes: Vec<String>,
    /// Token of the next page, if there is one.
    pub next: Option<String>,
    /// Number of entries that the origin has and the page leaves out, because they have no key or cannot be read.
    pub left_out: u64,
}

/// Which objects to list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ListOptions<'a> {
    /// Keys begin with it.
    pub prefix: &'a str,
    /// Keys are cut after the first delimiter behind the prefix; empty: not.
    pub delimiter: &'a str,
    /// Token of the page before.
    pub after: Option<&'a str>,
    /// Maximum entries of the page; 0: 1,000.
    pub limit: u32,
}

/// Options of a write.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PutOptions {
    /// Condition of the write.
    pub condition: WriteCondition,
    /// Content headers, and metadata with the prefix `x-amz-meta-`.
    pub attributes: Vec<(String, String)>,
    /// Bytes of a chunk of an upload; `None`: the server's.
    pub chunk: Option<u64>,
}

/// Condition of a write, checked when the object becomes visible.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum WriteCondition {
    /// Replaces any existing object.
    #[default]
    None,
    /// Fails with [`crate::ErrorCode::AlreadyExists`] if there is an object.
    Create,
    /// Fails with [`crate::ErrorCode::Precondition`] unless the object has this ETag.
    IfMatch(String),
}

/// Result of a write.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Written {
    /// ETag, if the origin has one.
    pub etag: Option<String>,
    /// Version or generation, if the origin has one.
    pub version: Option<String>,
}

impl Bucket {
    pub(crate) fn new(client: Client, name: &str) -> Self {
        Self {
            client,
            name: name.to_owned(),
        }
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The client.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Reads an object whole.
    ///
    /// # Errors
    /// [`crate::ErrorCode::NotFound`]; otherwise a code by the action that the caller can take.
    pub fn get(&self, key: &str) -> Result<Object> {
        self.get_with(key, ByteRange::Whole(()), &GetOptions::default())
    }

    /// Reads a range, cut at the object's end.
    ///
    /// # Errors
    /// As [`Self::get`]; [`crate::ErrorCode::InvalidRange`] if it begins at or beyond the end.
    pub fn get_range(&self, key: &str, range: Range<u64>) -> Result<Object> {
        self.get_with(key, byte_range(range), &GetOptions::default())
    }

    /// Reads a range under conditions.
    ///
    /// # Errors
    /// As [`Self::get_range`]; [`crate::ErrorCode::Precondition`] and [`crate::ErrorCode::NotModified`].
    pub fn get_with(&self, key: &str, range: ByteRange, options: &GetOptions) -> Result<Object> {
        get::one(self, key, range, options)
    }

    /// Reads many ranges of one version by one message.
    ///
    /// # Errors
    /// As [`Self::get_range`].
    pub fn get_ranges(
        &self,
        key: &str,
        ranges: &[Range<u64>],
        options: &GetOptions,
    ) -> Result<Ranges> {
        let ranges: Vec<_> = ranges.iter().cloned().map(byte_range).collect();
        get::of_object(self, key, &ranges, options)
    }

    /// Reads a range into `target`, which it fills: one copy, and nothing is held at the server. Returns the object's metadata.
    ///
    /// # Errors
    /// As [`Self::get_range`]; [`crate::ErrorCode::InvalidRange`] if the object ends inside the range.
    pub fn read_into(
        &self,
        key: &str,
        start: u64,
        target: &mut [u8],
        options: &GetOptions,
    ) -> Result<Metadata> {
        get::into(self, key, start, target, options)
    }

    /// Returns an object's metadata.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn head(&self, key: &str, options: &GetOptions) -> Result<Metadata> {
        self.client
            .again_if_broken(|| self.begin_head(key, options)?.wait())
    }

    /// As [`Self::head`] for event loops.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn begin_head(&self, key: &str, options: &GetOptions) -> Result<Pending<Metadata>> {
        let request = Request::Head(Head {
            bucket: self.name.clone(),
            key: key.to_owned(),
            conditions: options.conditions(),
            deadline_ms: self.client.deadline_ms(),
        });
        Pending::of(&self.client, &request, |reply| match reply {
            Reply::Head(head) => Ok(head.into()),
            reply => Err(other(reply)),
        })
    }

    /// Returns one page of a listing.
    ///
    /// # Errors
    /// A code by the action that the caller can take.
    pub fn list_page(&self, options: ListOptions<'_>) -> Result<ListPage> {
        self.client
            .again_if_broken(|| self.begin_list_page(options)?.wait())
    }

    /// As [`Self::list_page`] for event loops.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn begin_list_page(&self, options: ListOptions<'_>) -> Result<Pending<ListPage>> {
        let request = Request::List(List {
            bucket: self.name.clone(),
            prefix: options.prefix.to_owned(),
            delimiter: options.delimiter.to_owned(),
            after: options.after.unwrap_or_default().to_owned(),
            limit: options.limit,
            deadline_ms: self.client.deadline_ms(),
        });
        Pending::of(&self.client, &request, |reply| match reply {
            Reply::Page(page) => Ok(ListPage {
                objects: page.objects.into_iter().map(Metadata::from).collect(),
                prefixes: page.prefixes,
                next: Some(page.next).filter(|next| !next.is_empty()),
                left_out: page.left_out,
            }),
            reply => Err(other(reply)),
        })
    }

    /// Returns all objects whose keys begin with `prefix`, in the order of keys, page by page. Ends after the first error.
    pub fn list<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = Result<Metadata>> + 'a {
        let mut after = Some(None::<String>);
        let pages = std::iter::from_fn(move || {
            let token = after.take()?;
            let page = self.list_page(ListOptions {
                prefix,
                after: token.as_deref(),
                ..ListOptions::default()
            });
            Some(match page {
                Ok(page) => {
                    after = page.next.map(Some);
                    page.objects.into_iter().map(Ok).collect::<Vec<_>>()
                }
                Err(error) => vec![Err(error)],
            })
        });
        pages.flatten()
    }

    /// Writes an object.
    ///
    /// # Errors
    /// A code by the action that the caller can take. After [`crate::ErrorCode::Connection`] or
    /// [`crate::ErrorCode::Deadline`] the object may be written or not.
    pub fn put(&self, key: &str, bytes: &[u8], options: &PutOptions) -> Result<Written> {
        let request = Request::Put(self.put_request(key, options, Some(bytes.len() as u64)));
        self.client.on_connection(|connection| {
            connection.queue(&request);
            connection.send_data(bytes)?;
            connection.queue(&Request::Finish(()));
            connection.flush()?;
            match reply(connection)? {
                Reply::Writing(_) => {}
                _ => return Err(unexpected()),
            }
            match reply(connection)? {
                Reply::Stored(stored) => Ok(stored.into()),
                _ => Err(unexpected()),
            }
        })
    }

    /// As [`Self::put`] for event loops: the bytes are copied.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn begin_put(
        &self,
        key: &str,
        bytes: &[u8],
        options: &PutOptions,
    ) -> Result<Pending<Written>> {
        let request = Request::Put(self.put_request(key, options, Some(bytes.len() as u64)));
        let queue = |connection: &mut Connection| {
            connection.queue(&request);
            for data in bytes.chunks(MAX_DATA_BYTES) {
                connection.queue_data(data);
            }
            connection.queue(&Request::Finish(()));
        };
        Pending::begin(&self.client, 1, queue, |reply| match reply {
            Reply::Stored(stored) => Ok(stored.into()),
            reply => Err(other(reply)),
        })
    }

    /// Begins a write of an object whose bytes come in pieces. It becomes visible when [`Writer::finish`] succeeds.
    ///
    /// # Errors
    /// A code by the action that the caller can take.
    pub fn writer(&self, key: &str, options: &PutOptions) -> Result<Writer> {
        Writer::begin(self, Request::Put(self.put_request(key, options, None)))
    }

    /// Continues a write that [`Writer::capture`] has captured, here or in another process, also at another start of the server.
    ///
    /// # Errors
    /// [`crate::ErrorCode::UploadLost`] if the store has no such upload any more.
    pub fn resume(&self, token: &[u8]) -> Result<Writer> {
        let resume = crate::message::Resume {
            bucket: self.name.clone(),
            token: token.to_owned(),
        };
        Writer::begin(self, Request::Resume(resume))
    }

    fn put_request(&self, key: &str, options: &PutOptions, length: Option<u64>) -> Put {
        Put {
            bucket: self.name.clone(),
            key: key.to_owned(),
            mode: options.condition.mode(),
            attributes: pairs(&options.attributes),
            length,
            chunk: options.chunk.unwrap_or(0),
        }
    }

    /// Copies an object to `to_key` of `to`, a bucket of the same server.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn copy(
        &self,
        from_key: &str,
        to: &Self,
        to_key: &str,
        condition: &WriteCondition,
    ) -> Result<()> {
        let request = Request::Copy(Copy {
            from_bucket: self.name.clone(),
            from_key: from_key.to_owned(),
            from_etag: None,
            to_bucket: to.name.clone(),
            to_key: to_key.to_owned(),
            mode: condition.mode(),
            deadline_ms: self.client.deadline_ms(),
        });
        match self.client.call(&request)? {
            Reply::Done(()) => Ok(()),
            _ => Err(unexpected()),
        }
    }

    /// Deletes an object. One that is not there counts as deleted.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn delete(&self, key: &str) -> Result<()> {
        let failed = self.delete_all(&[key])?;
        failed
            .into_iter()
            .next()
            .map_or(Ok(()), |(_, error)| Err(error))
    }

    /// Deletes objects, a thousand by one message. Returns the keys that were not deleted.
    ///
    /// # Errors
    /// As [`Self::put`]. Keys of earlier messages are deleted all the same.
    pub fn delete_all(&self, keys: &[&str]) -> Result<Vec<(String, Error)>> {
        let mut failed = Vec::new();
        for keys in keys.chunks(MAX_DELETE_KEYS) {
            failed.extend(self.begin_delete(keys, None)?.wait()?);
        }
        Ok(failed)
    }

    /// Deletes at most a thousand objects, or one that has the ETag `if_match`, for event loops. Results in the keys that were not deleted.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn begin_delete(
        &self,
        keys: &[&str],
        if_match: Option<&str>,
    ) -> Result<Pending<Vec<(String, Error)>>> {
        let request = Request::Delete(Delete {
            bucket: self.name.clone(),
            keys: keys.iter().map(|key| (*key).to_owned()).collect(),
            if_match: if_match.map(str::to_owned),
            deadline_ms: self.client.deadline_ms(),
        });
        Pending::of(&self.client, &request, |reply| match reply {
            Reply::Deleted(failed) => {
                let failed = failed.into_iter();
                let pair = |Undeleted { key, failure }| (key, failure.into());
                Ok(failed.map(pair).collect())
            }
            reply => Err(other(reply)),
        })
    }

    /// Deletes an object that has this ETag.
    ///
    /// # Errors
    /// As [`Self::put`]; [`crate::ErrorCode::Precondition`] if it has another one.
    pub fn delete_if(&self, key: &str, etag: &str) -> Result<()> {
        let failed = self.begin_delete(&[key], Some(etag))?.wait()?;
        failed
            .into_iter()
            .next()
            .map_or(Ok(()), |(_, error)| Err(error))
    }

    /// Returns an address that is signed for one request without credentials: at the server's S3 endpoint.
    ///
    /// # Errors
    /// [`crate::ErrorCode::Unsupported`] at a server without a key.
    pub fn sign(&self, method: &str, key: &str, expires: Duration) -> Result<String> {
        let request = Request::Sign(Sign {
            bucket: self.name.clone(),
            key: key.to_owned(),
            method: method.to_owned(),
            expires_s: u32::try_from(expires.as_secs()).unwrap_or(u32::MAX),
        });
        match self.client.read(&request)? {
            Reply::Signed(address) => Ok(address),
            _ => Err(unexpected()),
        }
    }
}

fn pairs(attributes: &[(String, String)]) -> Vec<Pair> {
    let pair = |(name, value): &(String, String)| Pair {
        name: name.clone(),
        value: value.clone(),
    };
    attributes.iter().map(pair).collect()
}

impl WriteCondition {
    fn mode(&self) -> WriteMode {
        match self {
            Self::None => WriteMode::Overwrite(()),
            Self::Create => WriteMode::Create(()),
            Self::IfMatch(etag) => WriteMode::IfMatch(etag.clone()),
        }
    }
}

impl GetOptions {
    pub(crate) fn conditions(&self) -> Conditions {
        Conditions {
            if_match: self.if_match.clone(),
            if_none_match: self.if_none_match.clone(),
            version: self.version.clone(),
        }
    }
}

impl From<ObjectInfo> for Metadata {
    fn from(object: ObjectInfo) -> Self {
        let since = Duration::from_secs(object.modified_s.unsigned_abs());
        let fraction = Duration::from_nanos(u64::from(object.modified_ns));
        let second = if object.modified_s < 0 {
            SystemTime::UNIX_EPOCH.checked_sub(since)
        } else {
            SystemTime::UNIX_EPOCH.checked_add(since)
        };
        Self {
            key: object.key,
            size: object.size,
            modified: second
                .and_then(|second| second.checked_add(fraction))
                .unwrap_or(SystemTime::UNIX_EPOCH),
            etag: object.etag,
            weak_etag: object.weak,
            version: object.version,
            attributes: Vec::new(),
        }
    }
}

impl From<ObjectHead> for Metadata {
    fn from(head: ObjectHead) -> Self {
        let pair = |Pair { name, value }| (name, value);
        Self {
            attributes: head.attributes.into_iter().map(pair).collect(),
            ..Self::from(head.object)
        }
    }
}

impl From<Stored> for Written {
    fn from(stored: Stored) -> Self {
        Self {
            etag: stored.etag,
            version: stored.version,
        }
    }
}
