//! Listings of objects.

use bywash::Bucket;
use futures::future::join_all;
use http::{Response, StatusCode};
use object_store::{Error as StoreError, GetOptions, GetResult, ObjectStore};
use s3s::Body;
use serde::Serialize;

use super::admit::Admission;
use super::endpoint::{Endpoint, GcsRequest};
use super::error::{GcsError, GcsResult};
use super::fields::Fields;
use super::glob::Glob;
use super::query::Query;
use super::resource::{self, ObjectResource};
use crate::documents::entry_bytes;
use crate::errors::{OperationContext, from_store};
use crate::keys::path_of;
use crate::limits::MAX_LIST_KEYS;
use crate::listing::{self, EntryPage, ListEntry, ListPosition, ListScope, ListedObject};

/// Objects of a page whose metadata are read at a time.
const READS_AT_ONCE: usize = 16;
/// Memory of each byte of an object's metadata in a page: in its value, and in JSON in a buffer that grows.
const METADATA_FACTOR: u64 = 4;

/// Properties of items that only the objects themselves have, not the listings of other stores. gcsfuse names them with each listing:
/// links, modification times and its conditions depend on them.
const OF_METADATA: [&str; 2] = ["metadata", "metageneration"];

/// A page of a listing.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Page {
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_page_token: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    prefixes: Vec<String>,
    items: Vec<ObjectResource>,
}

fn max_results(query: &Query) -> GcsResult<i32> {
    match query.number("maxResults")? {
        None => Ok(MAX_LIST_KEYS),
        Some(max) if max > 0 => Ok(i32::try_from(max).unwrap_or(i32::MAX).min(MAX_LIST_KEYS)),
        Some(max) => Err(GcsError::parameter(
            "maxResults",
            format!("maxResults is more than 0, not {max}."),
        )),
    }
}

fn position(query: &Query) -> GcsResult<ListPosition> {
    if let Some(token) = query.get("pageToken") {
        return ListPosition::from_token(token).ok_or_else(|| {
            GcsError::parameter(
                "pageToken",
                "The pageToken is not one of this endpoint's; begin the listing again.",
            )
        });
    }
    match query.get("startOffset") {
        Some(start) => Ok(ListPosition::before(start)),
        None => Ok(ListPosition::Key(String::new())),
    }
}

/// Refuses parameters that list other objects. `versions` is accepted: each object has one version,
/// which is listed.
fn refuse_flags(query: &Query) -> GcsResult<()> {
    // `includeFoldersAsPrefixes` adds the folders of buckets with a hierarchical namespace, and managed folders: there are none.
    let is_given = |name: &&str| match *name {
        "filter" => query.get(name).is_some(),
        flag => query.flag(flag),
    };
    match ["softDeleted", "filter"].into_iter().find(is_given) {
        None => Ok(()),
        Some(name) => Err(GcsError::not_served(format!(
            "{name} is not served here; leave it out."
        ))),
    }
}

/// Parses the pattern of a listing.
fn pattern(query: &Query) -> GcsResult<Option<Glob>> {
    let Some(pattern) = query.get("matchGlob") else {
        return Ok(None);
    };
    if query.get("delimiter").is_some() {
        return Err(GcsError::not_served(
            "matchGlob with a delimiter is not served here; leave one of them out.",
        ));
    }
    Glob::parse(pattern).map(Some)
}

/// The longer one of two prefixes; `None` if no name has both.
fn narrowed<'a>(prefix: &'a str, other: &'a str) -> Option<&'a str> {
    let (longer, shorter) = if prefix.len() > other.len() {
        (prefix, other)
    } else {
        (other, prefix)
    };
    longer.starts_with(shorter).then_some(longer)
}

pub(crate) async fn objects(
    endpoint: &Endpoint,
    request: &mut GcsRequest,
) -> GcsResult<Response<Body>> {
    let query = &request.query;
    refuse_flags(query)?;
    let glob = pattern(query)?;
    let prefix = query.get("prefix").unwrap_or_default();
    let literal = glob.as_ref().map_or("", Glob::literal);
    let narrowed = narrowed(prefix, literal);
    let scope = ListScope {
        prefix: narrowed.unwrap_or(prefix),
        delimiter: query.get("delimiter").unwrap_or_default(),
    };
    let max = max_results(query)?;
    let after = position(query)?;
    let (start, end) = (query.get("startOffset"), query.get("endOffset"));
    let doing = OperationContext {
        key: scope.prefix,
        ..request.doing("list")
    };
    let bucket = endpoint.bucket(&request.route.bucket)?;
    // With a delimiter, many keys may form one entry; with a pattern, many are left out.
    let requested = match (scope.delimiter, &glob) {
        ("", None) => max,
        _ => MAX_LIST_KEYS,
    };
    let documents = &request.documents;
    let max_bytes = documents.charge_page(max, requested, doing).await?;
    let max = usize::try_from(max).unwrap_or_default();
    let searched = match (&glob, narrowed) {
        (_, None) => 0,
        (Some(_), Some(_)) => usize::try_from(MAX_LIST_KEYS).unwrap_or_default(),
        (None, Some(_)) => max,
    };
    let page = listing::page(&bucket, scope, after, searched, max_bytes).await;
    let mut page = page.map_err(|error| from_store(doing, &error))?;
    within(&bucket, &mut page, start, end, doing).await?;
    if let Some(glob) = &glob {
        retain(&mut page, glob, max).await;
    }
    let fields = Fields::of(query)?;
    let names_metadata = fields.is_some_and(|fields| fields.names("items", &OF_METADATA));
    let describing = Describing {
        bucket: &bucket,
        url: endpoint.url(&request.parts),
        // A client without a token may list a bucket whose objects it may not read.
        with_metadata: request.admission == Admission::All
            && (bucket.takes_late_attributes() || names_metadata),
        with_prefixes: query.flag("includeTrailingDelimiter"),
        start: start.unwrap_or_default(),
        doing,
    };
    let left_out = page.left_out_header();
    let mut response = resource::document(&describing.page(page, max_bytes).await?)?;
    response.headers_mut().extend(left_out);
    Ok(response)
}

/// Leaves the objects from `start` to before `end`, and the prefixes of such objects.
async fn within(
    bucket: &Bucket,
    page: &mut EntryPage,
    start: Option<&str>,
    end: Option<&str>,
    doing: OperationContext<'_>,
) -> GcsResult<()> {
    if let Some(end) = end
        && let Some(at) = page.entries.iter().position(|entry| entry.name() >= end)
    {
        page.entries.truncate(at);
        page.next = None;
    }
    if let Some(end) = end
        && let Some(ListEntry::Prefix(prefix)) = page.entries.last()
        && end.starts_with(prefix.as_str())
    {
        // All that are left of its objects may have later names.
        let below = ListScope {
            prefix,
            delimiter: "",
        };
        let from = start.map_or(ListPosition::Key(String::new()), ListPosition::before);
        let first = listing::page(bucket, below, from, 1, u64::MAX).await;
        let first = first.map_err(|error| from_store(doing, &error))?;
        if first.entries.iter().all(|entry| entry.name() >= end) {
            page.entries.pop();
        }
    }
    if let Some(start) = start {
        page.entries
            .retain(|entry| matches!(entry, ListEntry::Prefix(_)) || entry.name() >= start);
    }
    Ok(())
}

/// Leaves the first `max` entries that match in a page.
async fn retain(page: &mut EntryPage, glob: &Glob, max: usize) {
    let mut found: Vec<ListEntry> = Vec::new();
    for (number, entry) in std::mem::take(&mut page.entries).into_iter().enumerate() {
        if number % READS_AT_ONCE == 0 {
            // A match may take some microseconds for each byte of the name.
            tokio::task::yield_now().await;
        }
        if !glob.matches(entry.name()) {
            continue;
        }
        if found.len() == max {
            page.next = found.last().map(position_of);
            break;
        }
        found.push(entry);
    }
    page.entries = found;
}

fn position_of(entry: &ListEntry) -> ListPosition {
    match entry {
        ListEntry::Object(listed) => ListPosition::Key(listed.key.clone()),
        ListEntry::Prefix(prefix) => ListPosition::Prefix(prefix.clone()),
    }
}

/// Context for the description of a page's entries.
struct Describing<'a> {
    bucket: &'a Bucket,
    url: String,
    /// Whether items have the metadata of their objects. A folder and memory have them at hand; elsewhere each is a request, which is
    /// sent if the client names properties that are not in the store's listing.
    with_metadata: bool,
    /// Whether objects that have the name of a common prefix are items too.
    with_prefixes: bool,
    /// The name that items begin at.
    start: &'a str,
    doing: OperationContext<'a>,
}

/// The item of an entry, if it has one, and the bytes of its metadata and addresses.
type Described = (Option<ObjectResource>, u64);

impl Describing<'_> {
    /// Describes entries up to `max_bytes`, but at least one.
    async fn page(&self, page: EntryPage, mut max_bytes: u64) -> GcsResult<Page> {
        let mut found = Page {
            kind: "storage#objects",
            next_page_token: page.next.as_ref().map(ListPosition::to_token),
            prefixes: Vec::new(),
            items: Vec::new(),
        };
        let mut before: Option<ListPosition> = None;
        for entries in page.entries.chunks(READS_AT_ONCE) {
            let described = join_all(entries.iter().map(|entry| self.entry(entry))).await;
            for (entry, described) in entries.iter().zip(described) {
                let (item, bytes) = described?;
                let bytes = entry_bytes(entry.name()) + METADATA_FACTOR * bytes;
                if let Some(before) = before.filter(|_| bytes > max_bytes) {
                    found.next_page_token = Some(before.to_token());
                    return Ok(found);
                }
                max_bytes = max_bytes.saturating_sub(bytes);
                before = Some(position_of(entry));
                found.items.extend(item);
                if let ListEntry::Prefix(prefix) = entry {
                    found.prefixes.push(prefix.clone());
                }
            }
        }
        Ok(found)
    }

    async fn entry(&self, entry: &ListEntry) -> GcsResult<Described> {
        match entry {
            ListEntry::Object(listed) if self.with_metadata => {
                match self.read(&listed.key).await {
                    // The object is there, and its page is not of this object alone.
                    Err(error) if is_of_one_object(&error) => {
                        let reason = error.message();
                        tracing::warn!(key = listed.key, reason, "an item without its metadata");
                        Ok(self.listed(listed))
                    }
                    read => read,
                }
            }
            ListEntry::Object(listed) => Ok(self.listed(listed)),
            ListEntry::Prefix(prefix) if self.with_prefixes && prefix.as_str() >= self.start => {
                self.read(prefix).await
            }
            ListEntry::Prefix(_) => Ok((None, 0)),
        }
    }

    /// Describes an object from its listing entry.
    fn listed(&self, listed: &ListedObject) -> Described {
        let item = ObjectResource::listed(self.bucket, &listed.key, &listed.meta, &self.url);
        described(item, 0)
    }

    /// Describes an object, if it exists.
    async fn read(&self, key: &str) -> GcsResult<Described> {
        let options = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        let Ok(path) = path_of(key) else {
            return Ok((None, 0));
        };
        match self.bucket.get_opts(&path, options).await {
            Ok(found) if !self.with_metadata => {
                let item = ObjectResource::listed(self.bucket, key, &found.meta, &self.url);
                Ok(described(item, 0))
            }
            Ok(found) => {
                let item = ObjectResource::read(self.bucket, key, &found, &self.url);
                Ok(described(item, metadata_bytes(&found)))
            }
            Err(StoreError::NotFound { .. }) => Ok((None, 0)),
            Err(error) => {
                let doing = OperationContext { key, ..self.doing };
                Err(from_store(doing, &error).into())
            }
        }
    }
}

/// Whether a read failed for a reason of this object, and not of its store: no permission, or a
/// damaged file next to it.
fn is_of_one_object(error: &GcsError) -> bool {
    [StatusCode::FORBIDDEN, StatusCode::INTERNAL_SERVER_ERROR].contains(&error.status())
}

fn described(item: ObjectResource, metadata: u64) -> Described {
    let bytes = metadata + item.link_bytes();
    (Some(item), bytes)
}

fn metadata_bytes(found: &GetResult) -> u64 {
    let values = found.attributes.iter();
    // A name of user metadata is at most as long as a header's.
    values.map(|(_, value)| value.len() as u64 + 64).sum()
}
