//! Names: nodes and their registrations, shards, epochs, keys of objects.

use std::borrow::Borrow;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A node's identity. It is stored in the node's data folder, so it survives restarts and changes
/// of address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

/// Name of one registration of a node: drawn for each etcd lease and never used again. A node that
/// registers again does not inherit the shards it held before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Boot(pub u64);

/// A registration of a node in etcd: the key `nodes/ID/BOOT`, which is deleted when its lease ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    /// The node.
    pub node: NodeId,
    /// Its registration.
    pub boot: Boot,
}

/// Revision of etcd at which a shard was given to its holder. Each later holder has a higher one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// Number of a shard of the versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shard(pub u16);

/// An object: its bucket and its path there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Name of the bucket.
    pub bucket: Arc<str>,
    /// Path of the object.
    pub path: Arc<str>,
}

impl Key {
    /// The object at `path` of `bucket`.
    pub fn new(bucket: impl Into<Arc<str>>, path: impl Into<Arc<str>>) -> Self {
        Self {
            bucket: bucket.into(),
            path: path.into(),
        }
    }
}

/// Bucket and path of a key, by which maps are looked up without a [`Key`] of one's own.
pub(crate) trait KeyParts {
    /// Bucket and path.
    fn parts(&self) -> (&str, &str);
}

impl KeyParts for Key {
    fn parts(&self) -> (&str, &str) {
        (&self.bucket, &self.path)
    }
}

impl KeyParts for (&str, &str) {
    fn parts(&self) -> (&str, &str) {
        *self
    }
}

impl<'a> Borrow<dyn KeyParts + 'a> for Key {
    fn borrow(&self) -> &(dyn KeyParts + 'a) {
        self
    }
}

// As derived for `Key`.
impl Hash for dyn KeyParts + '_ {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

impl PartialEq for dyn KeyParts + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for dyn KeyParts + '_ {}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn keys_are_found_by_their_parts() {
        let map: HashMap<Key, u8> = HashMap::from([
            (Key::new("ab", "c"), 1),
            (Key::new("a", "bc"), 2),
            (Key::new("a", ""), 3),
        ]);
        let find = |parts: (&str, &str)| map.get(&parts as &dyn KeyParts).copied();
        assert_eq!(find(("ab", "c")), Some(1));
        assert_eq!(find(("a", "bc")), Some(2));
        assert_eq!(find(("a", "")), Some(3));
        assert_eq!(find(("", "a")), None);
    }
}
