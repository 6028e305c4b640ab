//! Settings of members that the cluster cannot work with, in the log when they appear and when they are gone.
//!
//! A node with such a setting is refused at its start ([`super::join`]). Members have them all the same: nodes that started at one time did
//! not see each other, and nodes of an earlier version were not asked.

use std::collections::BTreeMap;

use bywash::cluster::MemberFault;
use parking_lot::Mutex;

use super::core::Core;
use crate::names::NodeId;

/// The faults that were logged, by their members.
#[derive(Debug, Default)]
pub(super) struct Faults(Mutex<BTreeMap<NodeId, Vec<MemberFault>>>);

impl Core {
    /// Faults of members that have any.
    pub(super) fn faults(&self) -> BTreeMap<NodeId, Vec<MemberFault>> {
        let keys = self.published.lock().keys.clone();
        self.directory.lock().faults(&keys)
    }

    /// Logs the faults that appeared or ended since the last call.
    pub(super) fn log_faults(&self) {
        let mut logged = self.faults.0.lock();
        let current = self.faults();
        if *logged == current {
            return;
        }
        for (node, faults) in &current {
            let known = logged.get(node);
            let appeared = faults
                .iter()
                .filter(|fault| known.is_none_or(|of| !of.contains(fault)));
            for fault in appeared {
                let address = self.directory.lock().address(*node);
                let address = address.map_or_else(String::new, |of| of.address);
                tracing::error!("member {:016x} at {address} {}", node.0, fault.advice());
            }
        }
        for node in logged.keys().filter(|node| !current.contains_key(node)) {
            tracing::info!("member {:016x} has left or has other settings now", node.0);
        }
        *logged = current;
    }
}
