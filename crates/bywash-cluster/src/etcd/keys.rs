//! Names of keys in etcd, below `/bywash/NAME/`.

use crate::names::{Boot, Member, NodeId, Shard};

/// Name of a cluster: letters, digits, `-` and `_`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterName(String);

/// A key of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClusterKey {
    Node(Member),
    Shard(Shard),
}

/// Longest name. It is part of every key.
const NAME_BYTES: usize = 64;

impl ClusterName {
    /// Parses a name; `None` if it is not valid.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        let good = (1..=NAME_BYTES).contains(&name.len()) && name.bytes().all(allowed);
        good.then(|| Self(name.to_owned()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn node(&self, member: Member) -> String {
        let (node, boot) = (member.node.0, member.boot.0);
        format!("/bywash/{}/nodes/{node:016x}/{boot:016x}", self.0)
    }

    pub(super) fn shard(&self, shard: Shard) -> String {
        format!("/bywash/{}/shards/{:04}", self.0, shard.0)
    }

    pub(super) fn nodes(&self) -> String {
        format!("/bywash/{}/nodes/", self.0)
    }

    pub(super) fn shards(&self) -> String {
        format!("/bywash/{}/shards/", self.0)
    }

    /// Key of an open upload: in the order of buckets and of their keys. `hash` names it among the
    /// uploads of its object.
    pub(super) fn upload(&self, bucket: &str, key: &str, hash: &str) -> String {
        format!("{}{key}\0{hash}", self.uploads(Some(bucket)))
    }

    /// Key of an upload that became an object.
    pub(super) fn completed_upload(&self, bucket: &str, key: &str, hash: &str) -> String {
        format!("/bywash/{}/completed/{bucket}/{key}\0{hash}", self.0)
    }

    /// Prefix of the keys of the open uploads of a bucket, or of all buckets.
    pub(super) fn uploads(&self, bucket: Option<&str>) -> String {
        match bucket {
            Some(bucket) => format!("/bywash/{}/uploads/{bucket}/", self.0),
            None => format!("/bywash/{}/uploads/", self.0),
        }
    }

    /// Parses a key; `None` if it has another form.
    pub(super) fn parse(&self, key: &str) -> Option<ClusterKey> {
        if let Some(rest) = key.strip_prefix(&self.nodes()) {
            return parse_member(rest).map(ClusterKey::Node);
        }
        let number = key.strip_prefix(&self.shards())?;
        let digits = number.len() == 4 && number.bytes().all(|byte| byte.is_ascii_digit());
        let shard = number.parse().ok().filter(|_| digits)?;
        Some(ClusterKey::Shard(Shard(shard)))
    }
}

/// End of the range of keys that begin with `prefix`, which ends with `/`.
pub(super) fn range_end(prefix: &str) -> String {
    let stem = prefix.strip_suffix('/').unwrap_or(prefix);
    // The byte after '/'.
    format!("{stem}0")
}

/// Parses `ID/BOOT`, as it is in keys of nodes and in values of shards.
pub(crate) fn parse_member(text: &str) -> Option<Member> {
    let (node, boot) = text.split_once('/')?;
    let hex = |text: &str| {
        let digits = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        u64::from_str_radix(text, 16).ok().filter(|_| digits)
    };
    Some(Member {
        node: NodeId(hex(node)?),
        boot: Boot(hex(boot)?),
    })
}

/// Text of a member, as [`parse_member`] reads it.
pub(crate) fn member_text(member: Member) -> String {
    format!("{:016x}/{:016x}", member.node.0, member.boot.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_parsed_back_and_others_are_none() {
        let name = ClusterName::new("demo").unwrap();
        let member = Member {
            node: NodeId(1),
            boot: Boot(u64::MAX),
        };
        assert_eq!(
            name.node(member),
            "/bywash/demo/nodes/0000000000000001/ffffffffffffffff"
        );
        assert_eq!(
            name.parse(&name.node(member)),
            Some(ClusterKey::Node(member))
        );
        let shard = name.shard(Shard(7));
        assert_eq!(shard, "/bywash/demo/shards/0007");
        assert_eq!(name.parse(&shard), Some(ClusterKey::Shard(Shard(7))));
        assert_eq!(parse_member(&member_text(member)), Some(member));
        for other in [
            "/bywash/demo/shards/7",
            "/bywash/demo/shards/+007",
            "/bywash/demo/nodes/1/2",
            "/bywash/demo/nodes/0000000000000001",
            "/bywash/other/shards/0007",
            "/bywash/demo/uploads/0007",
        ] {
            assert_eq!(name.parse(other), None, "{other}");
        }
        assert_eq!(range_end("/a/nodes/"), "/a/nodes0");
    }

    #[test]
    fn names_with_other_characters_are_refused() {
        for bad in ["", "a/b", "a b", "ä", &"x".repeat(65)] {
            assert_eq!(ClusterName::new(bad), None, "{bad}");
        }
        assert!(ClusterName::new("Prod_1-eu").is_some());
    }
}
