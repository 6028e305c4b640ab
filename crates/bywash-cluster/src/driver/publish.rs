//! The node's record at etcd, kept as the node is.

use std::sync::Arc;

use super::DriverSettings;
use super::core::Core;
use crate::etcd::{MemberState, PROTOCOL, Record};
use crate::names::Boot;

/// The node's own record, and the part of it that is at etcd.
#[derive(Debug)]
pub(super) struct Published {
    pub(super) address: String,
    pub(super) keys: Vec<String>,
    weight: u32,
    process: u64,
    pub(super) state: MemberState,
    /// The record that was written last, with its registration.
    written: Option<(Boot, Record)>,
}

impl Published {
    pub(super) fn new(settings: DriverSettings) -> Self {
        Self {
            address: settings.address,
            keys: settings.keys,
            weight: settings.weight,
            process: settings.machine.process,
            state: MemberState::Joining,
            written: None,
        }
    }
}

impl Core {
    /// Record to be published.
    pub(super) fn record(&self) -> Record {
        let buckets = self.buckets.read().records();
        let published = self.published.lock();
        Record {
            address: published.address.clone(),
            weight: published.weight,
            state: published.state,
            protocol: PROTOCOL,
            process: published.process,
            buckets,
            keys: published.keys.clone(),
        }
    }

    /// Changes the state of the node. Returns whether it is a change.
    pub(super) fn set_state(&self, state: MemberState) -> bool {
        let mut published = self.published.lock();
        let order = |state| match state {
            MemberState::Joining => 0,
            MemberState::Up => 1,
            MemberState::Leaving => 2,
        };
        let later = order(state) > order(published.state);
        if later {
            published.state = state;
            self.record_changed.notify_one();
        }
        later
    }

    pub(super) fn note_written(&self, boot: Boot, record: Record) {
        self.published.lock().written = Some((boot, record));
    }

    /// etcd shows another record of this registration than the one it is to have: a request that was late has replaced it.
    pub(super) fn note_seen(&self, boot: Boot, seen: &Record) {
        let mut published = self.published.lock();
        let written = |(of, record): &(Boot, Record)| *of == boot && record != seen;
        if published.written.as_ref().is_some_and(written) {
            published.written = None;
            self.record_changed.notify_one();
        }
    }

    /// Writes the record once, if etcd may have another. Returns whether it has this one now.
    pub(super) async fn publish(&self) -> bool {
        let Some(me) = self.me() else {
            return false;
        };
        let record = self.record();
        let written = |(boot, old): &(Boot, Record)| *boot == me.boot && *old == record;
        if self.published.lock().written.as_ref().is_some_and(written) {
            return true;
        }
        match self.etcd.update(me.boot, &record).await {
            Ok(true) => {
                self.published.lock().written = Some((me.boot, record));
                true
            }
            // The registration is gone, which a keepalive or the watch shows.
            Ok(false) => false,
            Err(error) => {
                self.note_etcd(Err(&error));
                false
            }
        }
    }

    /// Writes the record whenever it has changed. Never returns.
    pub(super) async fn run_publisher(self: Arc<Self>) {
        loop {
            self.record_changed.notified().await;
            while self.me().is_some() && !self.publish().await {
                tokio::time::sleep(self.timing.register_pause).await;
            }
        }
    }
}
