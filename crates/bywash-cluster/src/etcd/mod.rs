//! etcd as the cluster uses it, by its JSON gateway over HTTP: leases, transactions, lists and a watch.
//!
//! Each request is sent to one endpoint with a limit below a second; after a failure the next one
//! uses the next endpoint. A stopped member of etcd would hold a request forever. A request without
//! a response may have been done, so its reply is [`crate::EtcdReply::Unknown`], and the state
//! machine decides.

mod batch;
mod client;
mod error;
mod keys;
mod list;
mod record;
#[cfg(test)]
pub(crate) mod tests;
mod uploads;
mod version;
mod watch;
mod wire;

pub use batch::{BATCH, is_batched};
pub use client::Etcd;
pub use error::EtcdError;
pub use keys::ClusterName;
pub(crate) use keys::{member_text, parse_member};
pub use list::{Listed, SeenRecord};
pub use record::{BucketRecord, MemberState, PROTOCOL, Record};
pub use uploads::EtcdUploads;
pub use version::{RefusedVersion, check_version};
pub use watch::{Watch, Watched};
