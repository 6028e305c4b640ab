//! Listing pages for any prefix and delimiter, with keys in UTF-8 byte order.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use bywash::origin::{LEFT_OUT, common_prefix, odd_keys};
use bywash::{Bucket, Omission};
use http::{HeaderName, HeaderValue};
use object_store::path::Path;
use object_store::{Error, ObjectMeta, ObjectStoreExt, Result};

use crate::documents::entry_bytes;
use crate::keys::{key_of, late_folders, may_have_odd_keys, path_of};
use crate::limits::{MAX_LISTING_RESTARTS, MAX_READ_OVER_KEYS};
use crate::xml;

/// Keys requested from the origin at a time when some may be skipped: a page of the S3 protocol.
const ORIGIN_PAGE_KEYS: usize = 1000;
/// Sorts after every character found in keys: the last private-use character.
const LAST: char = '\u{10FFFD}';

/// An entry of a listing.
#[derive(Debug)]
pub(crate) enum ListEntry {
    Object(ListedObject),
    Prefix(String),
}

/// An object and its key.
#[derive(Debug)]
pub(crate) struct ListedObject {
    pub(crate) key: String,
    pub(crate) meta: ObjectMeta,
}

impl From<ObjectMeta> for ListedObject {
    fn from(meta: ObjectMeta) -> Self {
        Self {
            key: key_of(&meta.location).into_owned(),
            meta,
        }
    }
}

impl ListEntry {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Object(listed) => &listed.key,
            Self::Prefix(prefix) => prefix,
        }
    }
}

/// Position from which a listing continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ListPosition {
    /// After this key; the empty key is the start.
    Key(String),
    /// After every key with this prefix.
    Prefix(String),
}

impl ListPosition {
    /// Converts a client's marker: a key, or a common prefix from an earlier page.
    pub(crate) fn marker(marker: &str, scope: &ListScope<'_>) -> Self {
        match scope.common_prefix(marker) {
            Some(prefix) if prefix == marker => Self::Prefix(marker.to_owned()),
            _ => Self::Key(marker.to_owned()),
        }
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Key(name) | Self::Prefix(name) => name,
        }
    }

    /// The position as a token for clients: opaque, and distinguishes keys from prefixes.
    pub(crate) fn to_token(&self) -> String {
        let kind = match self {
            Self::Key(_) => 'k',
            Self::Prefix(_) => 'p',
        };
        BASE64_URL_SAFE_NO_PAD.encode(format!("{kind}{}", self.name()))
    }

    /// Parses a token of [`Self::to_token`].
    pub(crate) fn from_token(token: &str) -> Option<Self> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(token).ok()?;
        let text = String::from_utf8(bytes).ok()?;
        match (text.strip_prefix('k'), text.strip_prefix('p')) {
            (Some(key), _) => Some(Self::Key(key.to_owned())),
            (_, Some(prefix)) => Some(Self::Prefix(prefix.to_owned())),
            _ => None,
        }
    }

    /// The position before the key `start` and after most others.
    pub(crate) fn before(start: &str) -> Self {
        Self::Key(before(start))
    }

    fn admits(&self, name: &str) -> bool {
        match self {
            Self::Key(key) => name > key.as_str(),
            Self::Prefix(prefix) => name > prefix.as_str() && !name.starts_with(prefix.as_str()),
        }
    }
}

/// Prefix and delimiter of a listing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListScope<'a> {
    pub(crate) prefix: &'a str,
    /// Empty without a delimiter.
    pub(crate) delimiter: &'a str,
}

impl<'a> ListScope<'a> {
    pub(crate) fn common_prefix<'k>(&self, key: &'k str) -> Option<&'k str> {
        if self.delimiter.is_empty() {
            return None;
        }
        let rest = key.strip_prefix(self.prefix)?;
        let end = rest.find(self.delimiter)? + self.delimiter.len();
        Some(&key[..self.prefix.len() + end])
    }

    /// Whether a key with this prefix is the key of a path.
    fn is_plain(&self) -> bool {
        self.prefix.rsplit_once('/').is_none_or(|(folder, _)| {
            let path = Path::parse(folder);
            !folder.is_empty() && path.is_ok_and(|path| path.as_ref() == folder)
        })
    }
}

/// A page under construction, and the position of the next one.
#[derive(Debug)]
pub(crate) struct EntryPage {
    pub(crate) entries: Vec<ListEntry>,
    pub(crate) next: Option<ListPosition>,
    /// Number of entries that are left out of the page. If the page ended before the last entry
    /// that was read from the origin, those up to there count too.
    pub(crate) left_out: u64,
}

impl EntryPage {
    /// The header that states how many entries are left out.
    pub(crate) fn left_out_header(&self) -> Option<(HeaderName, HeaderValue)> {
        (self.left_out > 0).then(|| (LEFT_OUT, HeaderValue::from(self.left_out)))
    }

    /// Takes out entries with characters that XML cannot represent.
    pub(crate) fn leave_out_unfit(&mut self, bucket: &Bucket) -> Result<()> {
        let mut result = Ok(());
        self.entries.retain(|entry| {
            let fits = entry.name().chars().all(xml::fits);
            if !fits {
                self.left_out += 1;
                let left_out = bucket.leave_out(entry.name(), Omission::OddKey);
                result = std::mem::replace(&mut result, Ok(())).and(left_out);
            }
            fits
        });
        Ok(result?)
    }
}

struct ListingWalk<'a> {
    bucket: &'a Bucket,
    scope: ListScope<'a>,
    after: ListPosition,
    max: usize,
    /// Bytes left for entries, as counted by [`entry_bytes`].
    max_bytes: u64,
    entries: Vec<ListEntry>,
    left_out: u64,
}

/// Lists at max_keys `max` entries of `scope` after `after`. Stops at `max_bytes` bytes as counted by [`entry_bytes`], but
/// returns at least one entry.
pub(crate) async fn page(
    bucket: &Bucket,
    scope: ListScope<'_>,
    after: ListPosition,
    max: usize,
    max_bytes: u64,
) -> Result<EntryPage> {
    let is_plain = scope.is_plain();
    if max == 0 || (!is_plain && !may_have_odd_keys(bucket)) {
        return Ok(EntryPage {
            entries: Vec::new(),
            next: None,
            left_out: 0,
        });
    }
    let mut walk = ListingWalk {
        bucket,
        scope,
        after,
        max,
        max_bytes,
        entries: Vec::new(),
        left_out: 0,
    };
    // Only paths have levels.
    let has_levels = scope.delimiter == "/" && is_plain;
    let mut restarts = 0;
    let more = loop {
        match walk.read().await? {
            ReadEnd::End => break false,
            ReadEnd::Full => break true,
            ReadEnd::Restart if restarts < MAX_LISTING_RESTARTS || !has_levels => restarts += 1,
            ReadEnd::Restart => break walk.read_level().await?,
        }
    };
    Ok(EntryPage {
        entries: walk.entries,
        next: more.then_some(walk.after),
        left_out: walk.left_out,
    })
}

enum ReadEnd {
    /// The listing has ended.
    End,
    /// The page is full.
    Full,
    /// Many keys are below the last common prefix: restart after it.
    Restart,
}

impl ListingWalk<'_> {
    /// A text before all remaining entries, if there is one. It only saves reading; all results are compared again.
    fn offset(&self) -> Option<String> {
        let beyond = match &self.after {
            ListPosition::Prefix(prefix) => format!("{prefix}{LAST}"),
            ListPosition::Key(key) if key.as_str() >= self.scope.prefix => key.clone(),
            ListPosition::Key(_) => before(self.scope.prefix),
        };
        Some(beyond).filter(|beyond| !beyond.is_empty())
    }

    async fn read(&mut self) -> Result<ReadEnd> {
        let mut offset = self.offset();
        let mut read_over = 0;
        let mut max_keys = match self.scope.delimiter {
            "" => self.max,
            _ => ORIGIN_PAGE_KEYS,
        };
        loop {
            let prefix = self.scope.prefix;
            let page = self
                .bucket
                .list_page(prefix, offset.as_deref(), max_keys)
                .await?;
            self.left_out += page.left_out.count;
            let last = page.objects.last().map(|last| last.location.clone());
            // For a folder, the key of its marker.
            offset = last
                .as_ref()
                .map(|last| odd_keys::key_of(last).into_owned());
            for meta in page.objects {
                let key = key_of(&meta.location);
                if !key.starts_with(prefix) {
                    continue;
                }
                if !self.after.admits(&key) {
                    read_over += 1;
                    if read_over > MAX_READ_OVER_KEYS
                        && matches!(&self.after, ListPosition::Prefix(prefix) if key.starts_with(prefix))
                    {
                        return Ok(ReadEnd::Restart);
                    }
                    continue;
                }
                read_over = 0;
                if !self.push_folders(&meta.location).await? {
                    return Ok(ReadEnd::Full);
                }
                let common_prefix = self.scope.common_prefix(&key).map(str::to_owned);
                let entry = match common_prefix {
                    Some(prefix) => ListEntry::Prefix(prefix),
                    None => ListEntry::Object(meta.into()),
                };
                if !self.push(entry) {
                    return Ok(ReadEnd::Full);
                }
            }
            let Some(last) = last.as_ref().filter(|_| page.more) else {
                return Ok(ReadEnd::End);
            };
            if self.entries.len() == self.max && self.goes_on_after(last) {
                return Ok(ReadEnd::Full);
            }
            max_keys = ORIGIN_PAGE_KEYS;
        }
    }

    /// Whether the origin's next entry after `last` is certainly a new entry of the listing.
    fn goes_on_after(&self, last: &Path) -> bool {
        // Neither below the last common prefix, nor a folder's key that was listed earlier.
        matches!(self.after, ListPosition::Key(_)) && late_folders(last).is_empty()
    }

    /// Adds the keys `folder/` that sort before `path` but are stored after it. Returns false if the page is full.
    /// Costs a request to the origin for each folder that has a name lower than the reserved one.
    async fn push_folders(&mut self, path: &Path) -> Result<bool> {
        for folder in late_folders(path) {
            let wanted = folder.starts_with(self.scope.prefix)
                && self.after.admits(&folder)
                && self.scope.common_prefix(&folder).is_none();
            let Some(stored) = path_of(&folder).ok().filter(|_| wanted) else {
                continue;
            };
            match self.bucket.head(&stored).await {
                Ok(meta) => {
                    if !self.push(ListEntry::Object(meta.into())) {
                        return Ok(false);
                    }
                }
                Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Lists the rest of the level with delimiter. Returns true if the page is full.
    async fn read_level(&mut self) -> Result<bool> {
        let mut next = Some(self.after.name().to_owned());
        while let Some(after) = next {
            let prefix = self.scope.prefix;
            let level = self.bucket.list_level(prefix, &after, ORIGIN_PAGE_KEYS);
            let level = level.await?;
            self.left_out += level.left_out.count;
            // A store that repeats a position would never end.
            next = level.next.filter(|next| *next > after);
            let prefixes = level.entries.common_prefixes.into_iter();
            let prefixes = prefixes.map(|path| ListEntry::Prefix(common_prefix(&path)));
            let objects = level.entries.objects.into_iter();
            let objects = objects.map(|meta| ListEntry::Object(meta.into()));
            let mut entries: Vec<ListEntry> = prefixes.chain(objects).collect();
            entries.retain(|entry| {
                entry.name().starts_with(prefix) && self.after.admits(entry.name())
            });
            entries.sort_unstable_by(|a, b| a.name().cmp(b.name()));
            for entry in entries {
                if !self.push(entry) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Adds an entry. Returns false if the page is full.
    fn push(&mut self, entry: ListEntry) -> bool {
        let bytes = entry_bytes(entry.name());
        if self.entries.len() == self.max || (bytes > self.max_bytes && !self.entries.is_empty()) {
            return false;
        }
        self.max_bytes = self.max_bytes.saturating_sub(bytes);
        self.after = match &entry {
            ListEntry::Object(listed) => ListPosition::Key(listed.key.clone()),
            ListEntry::Prefix(prefix) => ListPosition::Prefix(prefix.clone()),
        };
        self.entries.push(entry);
        true
    }
}

/// A string before all keys with `prefix` and after most others; empty if no such string exists. It
/// has no character that XML cannot represent in place of one that it can: a store may repeat it in
/// its response.
fn before(prefix: &str) -> String {
    let mut chars = prefix.chars();
    let lower = chars.next_back().map_or(0, u32::from);
    let mut lower = (0..lower).rev().filter_map(char::from_u32);
    match lower.find(|lower| xml::fits(*lower)) {
        Some(previous) => format!("{}{previous}{LAST}", chars.as_str()),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests;
