//! The folder store under `object_store`'s own conformance functions, one by one.
//!
//! Left out: `response_extensions` (needs an HTTP connector), `tagging` (cloud stores only) and tests of a
//! `MultipartStore`: parts arrive through `Origin`, see `folder_uploads.rs`.

use object_store::integration;

use crate::folder_store::store;

macro_rules! conforms {
    ($($name:ident($store:ident) $body:block)*) => {$(
        #[tokio::test]
        async fn $name() {
            let (_dir, $store) = store();
            $body
        }
    )*};
}

conforms! {
    put_get_delete_list(s) { integration::put_get_delete_list(&s).await; }
    put_get_attributes(s) { integration::put_get_attributes(&s).await; }
    get_opts(s) { integration::get_opts(&s).await; }
    put_opts(s) { integration::put_opts(&s, true).await; }
    stream_get(s) { integration::stream_get(&s).await; }
    list_uses_directories_correctly(s) { integration::list_uses_directories_correctly(&s).await; }
    list_with_delimiter(s) { integration::list_with_delimiter(&s).await; }
    rename_and_copy(s) { integration::rename_and_copy(&s).await; }
    copy_if_not_exists(s) { integration::copy_if_not_exists(&s).await; }
    copy_rename_nonexistent_object(s) { integration::copy_rename_nonexistent_object(&s).await; }
    multipart_race_condition(s) { integration::multipart_race_condition(&s, true).await; }
    multipart_out_of_order(s) { integration::multipart_out_of_order(&s).await; }
    list_paginated(s) { integration::list_paginated(&s, &s).await; }
    list_with_offset_exclusivity(s) { integration::list_with_offset_exclusivity(&s).await; }
    get_nonexistent_object(s) {
        let error = integration::get_nonexistent_object(&s, None).await.unwrap_err();
        assert!(matches!(error, object_store::Error::NotFound { .. }), "{error}");
    }
}
