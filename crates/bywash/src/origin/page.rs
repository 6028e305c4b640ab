//! One page of a listing, asked for as a page.

use futures::stream::BoxStream;
use futures::{TryStreamExt, future};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{ObjectMeta, Result};

use super::Cloud;

/// Some objects in the order of their keys, and whether others follow.
#[derive(Debug)]
pub struct ListPage {
    /// At most as many as were asked for. None only if none follow.
    pub objects: Vec<ObjectMeta>,
    /// Whether there are more, as the store says.
    pub more: bool,
}

/// The page that `list` begins with: from a store that has no pages, or of its own size only.
pub(super) async fn of_stream(
    list: impl FnOnce(Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>>,
    prefix: &str,
    most: usize,
) -> Result<ListPage> {
    let folder = match prefix.rsplit_once('/') {
        Some((folder, _)) => Some(Path::parse(folder)?),
        None => None,
    };
    let keys = list(folder.as_ref()).try_skip_while(|meta| {
        let before = meta.location.as_ref() < prefix;
        future::ok(before)
    });
    let keys = keys.try_take_while(|meta| future::ok(meta.location.as_ref().starts_with(prefix)));
    let mut keys = std::pin::pin!(keys);
    let mut objects = Vec::new();
    while let Some(meta) = keys.try_next().await? {
        if objects.len() == most {
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

impl<C> Cloud<C> {
    /// The page that `store`, which knows nothing of our prefix, has of its own.
    pub(super) async fn page_of(
        &self,
        store: &impl PaginatedListStore,
        prefix: &str,
        after: Option<&Path>,
        most: usize,
    ) -> Result<ListPage> {
        let ours = self.full_path(&Path::default());
        let prefix = match ours.as_ref() {
            "" => prefix.to_owned(),
            ours => format!("{ours}/{prefix}"),
        };
        let mut page_token = None;
        loop {
            let options = PaginatedListOptions {
                offset: after.map(|after| self.full_path(after).into()),
                max_keys: Some(most),
                page_token,
                ..PaginatedListOptions::default()
            };
            let page = store.list_paginated(Some(&prefix), options).await?;
            page_token = page.page_token;
            let mut objects = page.result.objects;
            objects.retain_mut(|meta| {
                let Some(rest) = meta.location.prefix_match(&ours) else {
                    return false;
                };
                meta.location = rest.collect();
                // A marker of our folder is no object in it, and not every store begins where it is told.
                !meta.location.is_root() && after.is_none_or(|after| meta.location > *after)
            });
            // A store may send a page without objects, and more after it.
            if objects.is_empty() && page_token.is_some() {
                continue;
            }
            return Ok(ListPage {
                objects,
                more: page_token.is_some(),
            });
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;
