//! The `ObjectStore` of a bucket: each request is passed to the module that serves it.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use bywash_store::{Capability, Omissions};
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyMode, CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
};
use tokio::time::Instant;

use crate::bucket::Bucket;
use crate::limits::{MAX_DELETE_REQUESTS_IN_FLIGHT, MAX_DELETES_PER_REQUEST, MAX_PARTS_IN_FLIGHT};
use crate::retry::{once, with_retries};
use crate::upload::{Ordered, UploadOptions};
use crate::{list, read};

#[async_trait]
impl ObjectStore for Bucket {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.shared().counters.request();
        self.put_once(path, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let options = UploadOptions {
            attributes: options.attributes,
            tags: options.tags,
            parallel: MAX_PARTS_IN_FLIGHT,
            transient: true,
            ..UploadOptions::default()
        };
        Ok(Box::new(Ordered::new(self.upload(path, options).await?)))
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        read::get(self.shared(), path, options).await
    }

    async fn get_ranges(&self, path: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        read::get_ranges(self.shared(), path, ranges).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.shared().counters.request();
        let bucket = self.clone();
        paths
            .ready_chunks(MAX_DELETES_PER_REQUEST)
            .map(move |paths| {
                let bucket = bucket.clone();
                async move { futures::stream::iter(bucket.delete_chunk(paths).await) }
            })
            .buffered(MAX_DELETE_REQUESTS_IN_FLIGHT)
            .flatten()
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        list::list(self.shared(), prefix, None, Omissions::default())
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        list::list(self.shared(), prefix, Some(offset), Omissions::default())
    }

    /// The extensions of the result have the entries left out, as [`crate::LeftOut`].
    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.shared().counters.request();
        let sent_at = Instant::now();
        let retry = self.shared().retry();
        let path = prefix.cloned().unwrap_or_default();
        let mut result = with_retries(retry, "list", &path, || {
            self.shared().origin_request(Capability::List);
            self.shared().origin.list_with_delimiter(prefix)
        })
        .await?;
        list::leave_out_odd(self.shared(), &mut result)?;
        for folder in &result.common_prefixes {
            list::check_below(folder, &path)?;
        }
        for meta in &result.objects {
            list::check_below(&meta.location, &path)?;
        }
        for meta in &result.objects {
            self.shared().versions.record_listed(sent_at, meta);
        }
        Ok(result)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.shared().counters.request();
        self.shared().check_same_content(from, to)?;
        let (shared, from) = (Arc::clone(self.shared()), from.clone());
        self.write(to, move |to| async move {
            let retry = shared.retry().with_server_work();
            let attempt = || {
                shared.origin_request(Capability::Write);
                shared.origin.copy_opts(&from, &to, options.clone())
            };
            match options.mode {
                CopyMode::Overwrite => with_retries(retry, "copy to", &to, attempt).await,
                CopyMode::Create => once(retry.policy.stall, "copy to", &to, attempt()).await,
            }
        })
        .await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.rename_current(from, to, options).await
    }
}
