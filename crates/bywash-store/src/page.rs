//! One page of a listing, requested as a page.

use futures::TryStreamExt;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{Error, ListResult, ObjectMeta, Result};

use super::odd_keys::{is_odd, key_of};
use super::omissions::{LeftOut, Omissions};
use crate::error::OriginError;

/// Objects as a listing yields them.
pub type Objects = BoxStream<'static, Result<ObjectMeta>>;

/// Keys as a bulk delete takes and returns them.
pub type Keys = BoxStream<'static, Result<Path>>;

/// Some objects in key order, and whether others follow.
#[derive(Debug)]
pub struct ListPage {
    /// At most as many as requested. Empty only if none follow.
    pub objects: Vec<ObjectMeta>,
    /// Whether there are more, as reported by the store.
    pub more: bool,
    /// Entries that it left out. Objects with odd keys ([`super::odd_keys`]) are among the others.
    pub left_out: LeftOut,
}

/// A page of one level of a listing.
#[derive(Debug)]
pub struct Level {
    /// Objects and common prefixes, each sorted.
    pub entries: ListResult,
    /// Name of the last entry, a prefix with its `/`, if there may be more after it.
    pub next: Option<String>,
    /// Entries that it left out.
    pub left_out: LeftOut,
}

impl Level {
    /// Selects the entries of a folder that begin with `prefix` and sort after `after`.
    pub(super) fn of_folder(mut entries: ListResult, prefix: &str, after: &str) -> Self {
        let takes = |name: &str| name.starts_with(prefix) && name > after;
        entries
            .objects
            .retain(|meta| takes(&key_of(&meta.location)));
        entries
            .common_prefixes
            .retain(|path| takes(&common_prefix(path)));
        Self {
            entries,
            next: None,
            left_out: LeftOut::default(),
        }
    }
}

/// Returns the common prefix that a listing has as `path`, with its `/`.
#[must_use]
pub fn common_prefix(path: &Path) -> String {
    let mut prefix = key_of(path).into_owned();
    if !is_odd(path) {
        prefix.push('/');
    }
    prefix
}

/// Returns the folder of all keys that begin with `prefix`.
pub(super) fn folder_of(prefix: &str) -> Result<Option<Path>> {
    let folder = prefix.rsplit_once('/');
    let folder = folder.map(|(folder, _)| Path::parse(folder)).transpose()?;
    // A path loses the `/` at either end of an odd prefix.
    Ok(folder.filter(|folder| prefix.starts_with(folder.as_ref())))
}

/// Returns the path of a text to begin a listing at; `None` if it has none, or one that is later. An offset only saves reading.
pub(super) fn offset_of(after: &str) -> Option<Path> {
    let path = Path::parse(after).ok();
    path.filter(|path| !path.is_root() && path.as_ref() <= after)
}

/// Checks the order of keys. In an unordered listing a page could be incomplete, or the next page could skip keys,
/// without any error.
#[derive(Default)]
pub(super) struct Order {
    last: Option<Path>,
}

impl Order {
    /// # Errors
    /// If `key` sorts before the one checked last.
    pub(super) fn check(&mut self, key: &Path) -> Result<()> {
        if let Some(last) = self.last.replace(key.clone()) {
            let (key, last) = (key_of(key), key_of(&last));
            // A client of a store may strip the `/` from the end of a key, so its path seems to sort earlier than it does.
            if key < last && *format!("{key}/") < *last {
                let source = format!(
                    "it lists {key} after {last}, and only listings in the order of keys can be read by pages; read the objects by \
                     their names, or list them at the origin itself"
                )
                .into();
                return Err(Error::NotSupported { source });
            }
        }
        Ok(())
    }
}

/// Rejects a key that is not below `prefix`. A path has no `/` at its end, which the prefix may have.
pub(super) fn check_prefix(key: &Path, prefix: &str) -> Result<()> {
    let key = key_of(key);
    if key.starts_with(prefix) || prefix.strip_suffix('/') == Some(&*key) {
        return Ok(());
    }
    let detail = format!("a listing of it has the key {key}");
    let object = prefix.to_owned();
    Err(OriginError::bad_response(object, detail))
}

/// Returns the first page of `list`, for a store without pages or with a page size of its own.
pub(super) async fn of_stream(
    list: impl FnOnce(Option<&Path>, &Omissions) -> Objects,
    prefix: &str,
    max: usize,
) -> Result<ListPage> {
    let folder = folder_of(prefix)?;
    let omissions = Omissions::default();
    let mut keys = list(folder.as_ref(), &omissions);
    let mut page = ListPage {
        objects: Vec::new(),
        more: false,
        left_out: LeftOut::default(),
    };
    let mut order = Order::default();
    while let Some(meta) = keys.try_next().await? {
        order.check(&meta.location)?;
        let key = key_of(&meta.location);
        if *key < *prefix {
            continue;
        }
        if !key.starts_with(prefix) {
            break;
        }
        if page.objects.len() == max {
            page.more = true;
            return Ok(page);
        }
        page.objects.push(meta);
        if page.objects.len() == max {
            // Later entries are noted by the next page.
            page.left_out = omissions.left_out();
        }
    }
    page.left_out = omissions.left_out();
    Ok(page)
}
