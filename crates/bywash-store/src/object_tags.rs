//! Tags that a store keeps of an object, and their number.

use object_store::GetResult;

/// Tags of an object, keys with values, in the order of the store.
pub type ObjectTags = Vec<(String, String)>;

/// Number of tags of an object, as the response to a read states it; an extension of that response. Stores state it to
/// readers that may read the tags.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TagCount(pub u32);

impl TagCount {
    /// Returns the number in a response; 0 if it states none.
    pub fn of(response: &GetResult) -> Self {
        response.extensions.get().copied().unwrap_or_default()
    }
}
