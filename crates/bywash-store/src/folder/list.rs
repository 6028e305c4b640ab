//! Lazy listings in ascending byte order of the key, with one folder's names per level in memory.
//!
//! A folder `d` sorts as `d/`, so a depth-first walk of sorted folders yields whole keys in order. The tree and the
//! overflow area are each walked in order and merged. An entry that cannot be read, or whose name is no key, is an item too, at
//! the place of its name.

mod overflow;

use std::collections::VecDeque;
use std::future::ready;
use std::iter::Peekable;
use std::sync::Arc;
use std::vec::IntoIter;

use futures::stream::{self, StreamExt};
use object_store::path::Path;
use object_store::{ListResult, ObjectMeta, Result};
use rustix::io::Errno;

use self::overflow::OverflowWalk;
use super::error::{blocking, io_error, is_unreadable, unreadable};
use super::names::is_own;
use super::root::{EntryKind, Root, join};
use crate::omissions::{Omission, Omissions};
use crate::page::Objects;

/// Objects looked up in one visit to a blocking thread.
const BATCH: usize = 256;

/// Selection of the keys to list.
#[derive(Debug, Clone, Default)]
pub(super) struct Filter {
    /// Prefix of the keys; need not end at a slash.
    pub(super) prefix: String,
    /// Keys up to and including this one are left out.
    pub(super) after: Option<String>,
    /// Folds keys with a slash after the prefix into one [`ListItem::Prefix`].
    pub(super) delimited: bool,
}

impl Filter {
    /// Selects the keys below `prefix`, as in [`object_store::ObjectStore::list`].
    pub(super) fn below(prefix: Option<&Path>) -> Self {
        let prefix = prefix.map(Path::as_ref).unwrap_or_default();
        Self {
            prefix: if prefix.is_empty() {
                String::new()
            } else {
                format!("{prefix}/")
            },
            ..Self::default()
        }
    }

    fn takes_key(&self, key: &[u8]) -> bool {
        key.starts_with(self.prefix.as_bytes())
            && self
                .after
                .as_ref()
                .is_none_or(|after| key > after.as_bytes())
    }

    /// Returns whether any key that begins with `start` may be selected.
    fn may_take_below(&self, start: &[u8]) -> bool {
        let prefix = self.prefix.as_bytes();
        (start.starts_with(prefix) || prefix.starts_with(start))
            && self
                .after
                .as_ref()
                .is_none_or(|after| start > after.as_bytes() || after.as_bytes().starts_with(start))
    }

    /// Returns the common prefix into which `key` is folded, with its slash.
    fn fold<'a>(&self, key: &'a str) -> Option<&'a str> {
        if !self.delimited {
            return None;
        }
        let rest = key.get(self.prefix.len()..)?;
        rest.find('/').map(|at| &key[..=self.prefix.len() + at])
    }
}

/// One item of a listing.
#[derive(Debug)]
pub(super) enum ListItem {
    Object(ObjectMeta),
    /// A common prefix with keys below it; ends with a slash.
    Prefix(String),
    /// An entry that is left out.
    LeftOut(String, Omission),
}

impl ListItem {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Object(meta) => meta.location.as_ref(),
            Self::Prefix(prefix) => prefix,
            Self::LeftOut(name, _) => name,
        }
    }
}

/// A folder of the tree being walked.
#[derive(Debug)]
struct TreeLevel {
    /// Empty, or ends with a slash.
    folder: String,
    /// Device and inode, to detect a link to a folder above.
    node: (u64, u64),
    /// Sorted; folders end with a slash.
    names: IntoIter<(String, Option<Omission>)>,
}

/// Walks the plain files.
#[derive(Debug)]
struct TreeWalk {
    root: Arc<Root>,
    filter: Filter,
    /// Only checks whether there is any object: takes the first file of a folder.
    any: bool,
    levels: Vec<TreeLevel>,
    /// The folder to enter next.
    enter: Option<String>,
    /// Items found ahead.
    found: VecDeque<ListItem>,
}

impl TreeWalk {
    fn new(root: Arc<Root>, filter: Filter, any: bool) -> Self {
        let start = filter
            .prefix
            .rfind('/')
            .map_or("", |at| &filter.prefix[..=at]);
        let start = (!start.split('/').any(is_own)).then(|| start.to_owned());
        Self {
            root,
            filter,
            any,
            levels: Vec::new(),
            enter: start,
            found: VecDeque::new(),
        }
    }

    fn enter(&mut self, folder: String) -> Result<(), Errno> {
        let (mut names, mut whole, mut left_out) = (Vec::new(), String::new(), Vec::new());
        let (filter, any) = (&self.filter, self.any);
        let each = |name: &str, kind| {
            if is_own(name) {
                return true;
            }
            whole.clear();
            whole.push_str(&folder);
            whole.push_str(name);
            let taken = match kind {
                EntryKind::File => filter.takes_key(whole.as_bytes()),
                EntryKind::Folder => {
                    whole.push('/');
                    filter.may_take_below(whole.as_bytes())
                }
            };
            if taken && any && kind == EntryKind::File {
                names.clear();
            }
            if taken {
                names.push((whole[folder.len()..].to_owned(), None));
            }
            !(taken && any && kind == EntryKind::File)
        };
        let noted = |name: &str, omission| {
            let whole = join(&folder, name);
            if !is_own(name) && filter.takes_key(whole.as_bytes()) {
                left_out.push((name.to_owned(), Some(omission)));
            }
        };
        let Some(node) = self.root.read_folder_noting(&folder, each, noted)? else {
            return Ok(());
        };
        // One object is enough, although others are left out.
        if !(any && names.len() == 1 && !names[0].0.ends_with('/')) {
            names.append(&mut left_out);
        }
        if self.levels.iter().any(|level| level.node == node) {
            return Ok(());
        }
        names.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        self.levels.push(TreeLevel {
            folder,
            node,
            names: names.into_iter(),
        });
        Ok(())
    }

    /// Returns the common prefix `folder` if any selected object is below it, else the entries left out there.
    fn folded(&self, folder: String) -> Result<Vec<ListItem>> {
        let filter = Filter {
            prefix: folder.clone(),
            after: self.filter.after.clone(),
            delimited: false,
        };
        let mut left_out = Vec::new();
        for item in Self::new(Arc::clone(&self.root), filter, true) {
            match item? {
                item @ ListItem::LeftOut(..) => left_out.push(item),
                _ => return Ok(vec![ListItem::Prefix(folder)]),
            }
        }
        Ok(left_out)
    }

    /// Enters the next folder. Returns it if it is left out.
    fn enter_next(&mut self) -> Result<Option<ListItem>> {
        let Some(folder) = self.enter.take() else {
            return Ok(None);
        };
        match self.enter(folder.clone()) {
            Ok(()) => Ok(None),
            // Without the folder that is listed, nothing is known.
            Err(errno) if self.any || !self.levels.is_empty() => {
                left_out(&self.root, folder, errno).map(Some)
            }
            Err(errno) => Err(io_error("list", folder, errno)),
        }
    }
}

impl Iterator for TreeWalk {
    type Item = Result<ListItem>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(item) = self.found.pop_front() {
                return Some(Ok(item));
            }
            match self.enter_next() {
                Ok(None) => {}
                found => return found.transpose(),
            }
            let level = self.levels.last_mut()?;
            let Some((name, omission)) = level.names.next() else {
                self.levels.pop();
                continue;
            };
            let name = join(&level.folder, &name);
            if let Some(omission) = omission {
                return Some(Ok(ListItem::LeftOut(name, omission)));
            }
            if !name.ends_with('/') {
                let found = if self.any {
                    probe(&self.root, &name)
                } else {
                    object(&self.root, &name, &name)
                };
                match found {
                    Ok(None) => continue,
                    found => return found.transpose(),
                }
            }
            // A folder is folded only after the prefix.
            if self.filter.delimited && name.starts_with(&self.filter.prefix) {
                match self.folded(name) {
                    Ok(found) => self.found.extend(found),
                    Err(error) => return Some(Err(error)),
                }
            } else {
                self.enter = Some(name);
            }
        }
    }
}

/// Returns the object `key` in the file at `path`; `None` if it is gone or not a key.
fn object(root: &Root, key: &str, path: &str) -> Result<Option<ListItem>> {
    let Ok(location) = Path::parse(key) else {
        return Ok(None);
    };
    match root.listed(&location, path) {
        Ok(found) => Ok(found.map(ListItem::Object)),
        Err(errno) => left_out(root, key.to_owned(), errno).map(Some),
    }
}

/// Returns an entry that cannot be read as left out.
///
/// # Errors
/// If the failure is not of this entry alone.
fn left_out(root: &Root, name: String, errno: Errno) -> Result<ListItem> {
    if is_unreadable(errno) && root.open_folder("").is_ok() {
        Ok(ListItem::LeftOut(name, unreadable(errno)))
    } else {
        Err(io_error("list", name, errno))
    }
}

/// As [`object`] for a key that is its path, perhaps without its ETag. Opens the file only if it is a link.
fn probe(root: &Root, key: &str) -> Result<Option<ListItem>> {
    match (Path::parse(key), root.identity_nofollow(key)) {
        (Ok(location), Some(identity)) => Ok(Some(ListItem::Object(identity.meta(location)))),
        _ => object(root, key, key),
    }
}

/// Tree and overflow area, merged in order.
#[derive(Debug)]
pub(super) struct FolderListing {
    tree: Peekable<TreeWalk>,
    overflow: Peekable<OverflowWalk>,
}

impl FolderListing {
    pub(super) fn new(root: &Arc<Root>, filter: Filter) -> Self {
        Self {
            tree: TreeWalk::new(Arc::clone(root), filter.clone(), false).peekable(),
            overflow: OverflowWalk::new(Arc::clone(root), filter).peekable(),
        }
    }

    /// Returns the listing as a stream of objects, at most one batch ahead. Entries left out are noted at their place in the stream.
    pub(super) fn stream(self, omissions: Omissions) -> Objects {
        stream::unfold(Some(self), |listing| async move {
            let mut listing = listing?;
            let visit = blocking(move || {
                let batch: Vec<_> = listing.by_ref().take(BATCH).collect();
                Ok((batch, listing))
            });
            match visit.await {
                Ok((batch, _)) if batch.is_empty() => None,
                Ok((batch, listing)) => Some((batch, Some(listing))),
                Err(error) => Some((vec![Err(error)], None)),
            }
        })
        .flat_map(stream::iter)
        .filter_map(move |item| {
            ready(match item {
                Ok(ListItem::Object(meta)) => Some(Ok(meta)),
                Ok(ListItem::Prefix(_)) => None,
                Ok(ListItem::LeftOut(name, omission)) => {
                    omissions.note(name, omission);
                    None
                }
                Err(error) => Some(Err(error)),
            })
        })
        .boxed()
    }

    /// Returns at most `limit` items after `token` (the last item of the previous page), and the token of the next
    /// page if there is one. The extensions of the result have the entries left out before its last item.
    pub(super) fn page(
        self,
        token: Option<&str>,
        limit: usize,
    ) -> Result<(ListResult, Option<String>)> {
        let (omissions, after_last) = (Omissions::default(), Omissions::default());
        let mut result = ListResult {
            common_prefixes: Vec::new(),
            objects: Vec::new(),
            extensions: object_store::Extensions::default(),
        };
        let mut last = None;
        for item in self {
            let item = item?;
            if token.is_some_and(|token| item.name() <= token) {
                continue;
            }
            let is_full = result.objects.len() + result.common_prefixes.len() >= limit;
            if let ListItem::LeftOut(name, omission) = item {
                // Those after the last item are noted by the next page, if there is one.
                let noted = if is_full { &after_last } else { &omissions };
                noted.note(name, omission);
                continue;
            }
            if is_full {
                result.extensions.insert(omissions.left_out());
                return Ok((result, last));
            }
            last = Some(item.name().to_owned());
            match item {
                ListItem::Object(meta) => result.objects.push(meta),
                ListItem::Prefix(prefix) => result.common_prefixes.push(Path::parse(prefix)?),
                ListItem::LeftOut(..) => {}
            }
        }
        let (mut left, mut rest) = (omissions.left_out(), after_last.left_out());
        left.count += rest.count;
        left.named.append(&mut rest.named);
        result.extensions.insert(left);
        Ok((result, None))
    }
}

impl Iterator for FolderListing {
    type Item = Result<ListItem>;

    fn next(&mut self) -> Option<Self::Item> {
        let (Some(Ok(tree)), Some(Ok(overflow))) = (self.tree.peek(), self.overflow.peek()) else {
            // An error is first; else the side that has items left.
            return match self.tree.peek() {
                Some(Ok(_)) if self.overflow.peek().is_some() => self.overflow.next(),
                Some(_) => self.tree.next(),
                None => self.overflow.next(),
            };
        };
        match tree.name().cmp(overflow.name()) {
            std::cmp::Ordering::Less => self.tree.next(),
            std::cmp::Ordering::Greater => self.overflow.next(),
            // The tree takes precedence, as in a read.
            std::cmp::Ordering::Equal => {
                drop(self.overflow.next());
                self.tree.next()
            }
        }
    }
}
