//! Keys of blocks, and handles to resident ones.

/// Key of a block. The bytes under a key never change: another version of an object has another `object` number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockKey {
    /// Number of the store, chosen by the caller. Several stores share a pool.
    pub store: u32,
    /// Number of one version of one object, chosen by the caller.
    pub object: u64,
    /// Index of the block within the object.
    pub block: u32,
}

/// Place of a resident block, for pinning it again without a lookup ([`crate::BlockPool::try_pin`]). Does not keep the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockHandle {
    pub(crate) slot: u32,
    pub(crate) key: BlockKey,
}
