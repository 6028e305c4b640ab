//! Listings over the socket.

use std::collections::BTreeSet;
use std::sync::Arc;

use bywash::origin::Omissions;
use bywash::origin::odd_keys::{is_odd, path_of_key};
use bywash_client::{ListOptions, ListPage};
use futures::StreamExt;
use futures::stream::{self, BoxStream, unfold};
use object_store::path::Path;
use object_store::{ListResult, ObjectMeta, Result};

use super::LocalBucket;
use super::metadata::{is_in_xml, listed};

/// A listing in progress.
struct Walk {
    local: Arc<LocalBucket>,
    prefix: Option<Path>,
    omissions: Omissions,
    /// The last object that was listed.
    last: Option<Path>,
    position: Position,
}

enum Position {
    /// At the page with this token, or at the first one.
    Page(Option<String>),
    End,
}

/// Lists the objects below `prefix`, and notes those left out. The endpoint lists the rest after a failure.
pub(super) fn objects(
    local: &Arc<LocalBucket>,
    prefix: Option<&Path>,
    omissions: &Omissions,
) -> BoxStream<'static, Result<ObjectMeta>> {
    let walk = Walk {
        local: Arc::clone(local),
        prefix: prefix.cloned(),
        omissions: omissions.clone(),
        last: None,
        position: Position::Page(None),
    };
    let pages = unfold(walk, |mut walk| async move {
        let page = walk.next().await?;
        Some((page, walk))
    });
    pages.flatten().boxed()
}

impl Walk {
    async fn next(&mut self) -> Option<BoxStream<'static, Result<ObjectMeta>>> {
        let Position::Page(token) = std::mem::replace(&mut self.position, Position::End) else {
            return None;
        };
        let prefix = self.prefix.as_ref();
        let Some(page) = self.local.page(prefix, "", token).await else {
            let (last, omissions) = (self.last.as_ref(), &self.omissions);
            return Some(self.local.endpoint.list_noting(prefix, last, omissions));
        };
        self.omissions.note_unnamed(page.left_out);
        if let Some(next) = page.next {
            self.position = Position::Page(Some(next));
        }
        let mut objects = Vec::with_capacity(page.objects.len());
        for found in page.objects {
            match listed(found) {
                Some(object) => objects.push(Ok(object)),
                None => self.omissions.note_unnamed(1),
            }
        }
        if let Some(Ok(last)) = objects.last() {
            self.last = Some(last.location.clone());
        }
        Some(stream::iter(objects).boxed())
    }
}

/// Lists one level below `prefix`. `None` if a page fails.
pub(super) async fn level(local: &LocalBucket, prefix: Option<&Path>) -> Option<ListResult> {
    let (mut common_prefixes, mut objects) = (BTreeSet::new(), Vec::new());
    let mut token = None;
    loop {
        let page = local.page(prefix, "/", token).await?;
        objects.extend(page.objects.into_iter().filter_map(listed));
        let prefixes = page.prefixes.iter().filter(|prefix| is_in_xml(prefix));
        common_prefixes.extend(prefixes.map(|prefix| path_of_prefix(prefix)));
        token = page.next;
        if token.is_none() {
            return Some(ListResult {
                common_prefixes: common_prefixes.into_iter().collect(),
                objects,
                extensions: http::Extensions::new(),
            });
        }
    }
}

/// The path of a common prefix, as listings of the endpoint have it.
fn path_of_prefix(prefix: &str) -> Path {
    let folder = prefix.strip_suffix('/').unwrap_or(prefix);
    let path = path_of_key(folder);
    if is_odd(&path) {
        path_of_key(prefix)
    } else {
        path
    }
}

impl LocalBucket {
    /// Requests a page over the socket. `None` if the endpoint is to be asked.
    async fn page(
        &self,
        prefix: Option<&Path>,
        delimiter: &'static str,
        token: Option<String>,
    ) -> Option<ListPage> {
        let folder = prefix.filter(|prefix| !prefix.is_root());
        let folder = folder.map_or_else(String::new, |folder| format!("{folder}/"));
        let socket = self.socket().await?;
        let page = socket.call(move |bucket| {
            bucket.list_page(ListOptions {
                prefix: &folder,
                delimiter,
                after: token.as_deref(),
                limit: 0,
            })
        });
        page.await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_is_a_folder_or_an_odd_key() {
        assert_eq!(path_of_prefix("a b/c/"), Path::from("a b/c"));
        for odd in ["/", "a//", "a/../"] {
            assert_eq!(path_of_prefix(odd), path_of_key(odd));
            assert!(is_odd(&path_of_prefix(odd)), "{odd}");
        }
    }
}
