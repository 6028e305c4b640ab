//! [`ObjectStore`] for a type that forwards most calls to the store in one of its fields.

/// Implements [`object_store::ObjectStore`] by forwarding every call to a field, except `put_opts` and `get_opts`,
/// which wrappers change and write out.
///
/// ```ignore
/// bywash_support::forward_object_store! {
///     impl[] ObjectStore for Wrapper => inner { async fn put_opts(..) { .. } async fn get_opts(..) { .. } }
/// }
/// ```
#[macro_export]
macro_rules! forward_object_store {
    (impl[$($generics:tt)*] ObjectStore for $type:ty => $inner:ident { $($own:tt)* }) => {
        #[async_trait::async_trait]
        impl<$($generics)*> object_store::ObjectStore for $type {
            $($own)*

            async fn put_multipart_opts(
                &self,
                path: &object_store::path::Path,
                options: object_store::PutMultipartOptions,
            ) -> object_store::Result<Box<dyn object_store::MultipartUpload>> {
                self.$inner.put_multipart_opts(path, options).await
            }

            fn delete_stream(
                &self,
                paths: futures::stream::BoxStream<'static, object_store::Result<object_store::path::Path>>,
            ) -> futures::stream::BoxStream<'static, object_store::Result<object_store::path::Path>> {
                self.$inner.delete_stream(paths)
            }

            fn list(
                &self,
                prefix: Option<&object_store::path::Path>,
            ) -> futures::stream::BoxStream<'static, object_store::Result<object_store::ObjectMeta>> {
                self.$inner.list(prefix)
            }

            fn list_with_offset(
                &self,
                prefix: Option<&object_store::path::Path>,
                offset: &object_store::path::Path,
            ) -> futures::stream::BoxStream<'static, object_store::Result<object_store::ObjectMeta>> {
                self.$inner.list_with_offset(prefix, offset)
            }

            async fn list_with_delimiter(
                &self,
                prefix: Option<&object_store::path::Path>,
            ) -> object_store::Result<object_store::ListResult> {
                self.$inner.list_with_delimiter(prefix).await
            }

            async fn copy_opts(
                &self,
                from: &object_store::path::Path,
                to: &object_store::path::Path,
                options: object_store::CopyOptions,
            ) -> object_store::Result<()> {
                self.$inner.copy_opts(from, to, options).await
            }
        }
    };
}
