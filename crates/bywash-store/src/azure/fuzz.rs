//! Fuzzing entry points for the store's responses.

use object_store::path::Path;

use super::session::{BlockLists, covering};
use super::upload::BlockUpload;

/// Parses any bytes as a list of blocks: open ranges must be whole, and an object's blocks must add up to its length.
pub(crate) fn blocks(body: &[u8]) {
    const NAME: &str = "0123456789abcdef";
    let Ok(lists) = BlockLists::parse(body) else {
        return;
    };
    let open = lists.open(NAME);
    for (start, block) in &open {
        assert!(block.range.start == *start && block.range.end >= *start);
        covering(&open, block.range.end);
    }
    lists.committed(NAME);
}

/// Parses any text as the id of an upload: a valid one must parse again.
pub(crate) fn id(text: &str) {
    let path = Path::from("object");
    if let Ok(upload) = BlockUpload::parse(&path, text) {
        let again = BlockUpload::parse(&path, &upload.id()).expect("an id that was written");
        assert_eq!(again.headers(), upload.headers());
    }
}
