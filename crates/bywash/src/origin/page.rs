//! One page of a listing, requested as a page.

use futures::TryStreamExt;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{Error, ListResult, ObjectMeta, Result};

use crate::EngineError;

/// Some objects in key order, and whether others follow.
#[derive(Debug)]
pub struct ListPage {
    /// At most as many as requested. Empty only if none follow.
    pub objects: Vec<ObjectMeta>,
    /// Whether there are more, as reported by the store.
    pub more: bool,
}

/// A page of one level of a listing.
#[derive(Debug)]
pub struct Level {
    /// Objects and common prefixes, each sorted.
    pub entries: ListResult,
    /// Name of the last entry, a prefix with its `/`, if there may be more after it.
    pub next: Option<String>,
}

impl Level {
    /// Selects the entries of a folder that begin with `prefix` and sort after `after`.
    pub(super) fn of_folder(mut entries: ListResult, prefix: &str, after: &str) -> Self {
        let takes = |name: &str| name.starts_with(prefix) && name > after;
        entries.objects.retain(|meta| takes(meta.location.as_ref()));
        entries
            .common_prefixes
            .retain(|path| takes(&format!("{path}/")));
        let next = None;
        Self { entries, next }
    }
}

/// Returns the folder of all keys that begin with `prefix`.
pub(super) fn folder_of(prefix: &str) -> Result<Option<Path>> {
    let folder = prefix.rsplit_once('/');
    Ok(folder.map(|(folder, _)| Path::parse(folder)).transpose()?)
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
            // The client strips the `/` from the end of a key, so its path seems to sort earlier than it does.
            if *key < last && format!("{key}/").as_str() < last.as_ref() {
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
    let key = key.as_ref();
    if key.starts_with(prefix) || prefix.strip_suffix('/') == Some(key) {
        return Ok(());
    }
    let detail = format!("a listing of it has the key {key}");
    let object = prefix.to_owned();
    Err(EngineError::BadResponse { object, detail }.into())
}

/// Returns the first page of `list`, for a store without pages or with a page size of its own.
pub(super) async fn of_stream(
    list: impl FnOnce(Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>>,
    prefix: &str,
    max: usize,
) -> Result<ListPage> {
    let folder = folder_of(prefix)?;
    let mut keys = list(folder.as_ref());
    let (mut objects, mut order) = (Vec::new(), Order::default());
    while let Some(meta) = keys.try_next().await? {
        order.check(&meta.location)?;
        if meta.location.as_ref() < prefix {
            continue;
        }
        if !meta.location.as_ref().starts_with(prefix) {
            break;
        }
        if objects.len() == max {
            return Ok(ListPage {
                objects,
                more: true,
            });
        }
        objects.push(meta);
    }
    Ok(ListPage {
        objects,
        more: false,
    })
}
