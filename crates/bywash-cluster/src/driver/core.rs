//! The state machine behind its lock, and the execution of its actions.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bywash::clone_error;
use bywash::cluster::CurrentVersion;
use object_store::path::Path;
use object_store::{Error, Result};
use parking_lot::{Mutex, RwLock};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, oneshot};

use super::DriverSettings;
use super::batch::batches;
use super::buckets::Buckets;
use super::clock::boottime;
use super::counters::Counters;
use super::directory::Directory;
use super::faults::Faults;
use super::join::Start;
use super::publish::Published;
use super::requests::WritePlaces;
use super::status::EtcdHealth;
use crate::etcd::{BATCH, Etcd, is_batched};
use crate::leases::LeaseTable;
use crate::limits::MAX_PEER_READS;
use crate::message::{Action, CallId, Event, OpId, Outcome, PeerRequest, PeerResponse, QuestionId};
use crate::names::{Boot, Key, Member, NodeId};
use crate::node::{Node, Settings, Status};
use crate::read::Suspects;
use crate::timing::Timing;
use crate::transport::PeerTransport;

/// Transactions of shards at once.
const BATCHES_AT_ONCE: usize = 4;

/// All parts of a node's driver.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) node: NodeId,
    pub(super) process: u64,
    pub(super) timing: Timing,
    /// Shards of the cluster.
    pub(super) shards: u64,
    pub(super) etcd: Etcd,
    pub(super) transport: Arc<dyn PeerTransport>,
    machine: Mutex<Machine>,
    /// The machine's.
    pub(super) leases: Arc<LeaseTable<CurrentVersion>>,
    operations: Mutex<Operations>,
    pub(super) buckets: RwLock<Buckets>,
    pub(super) directory: Mutex<Directory>,
    pub(super) published: Mutex<Published>,
    /// The record has changed, or may differ from etcd's.
    pub(super) record_changed: Notify,
    /// Number of changes of etcd's cluster. Hold its lock while applying a list or watch response,
    /// so that one from the previous etcd is discarded.
    pub(super) generation: Mutex<u64>,
    /// The keys are to be listed at once.
    pub(super) relist: Notify,
    pub(super) start: Start,
    /// Failures of other nodes as sources of blocks.
    pub(super) suspects: Mutex<Suspects>,
    /// Faults of members that were logged.
    pub(super) faults: Faults,
    pub(super) counters: Counters,
    pub(super) health: Mutex<EtcdHealth>,
    pub(super) batches: Semaphore,
    pub(super) write_places: WritePlaces,
    /// Places of reads of other nodes' blocks.
    pub(super) peer_reads: Arc<Semaphore>,
    /// The machine's first timer is due sooner than it was.
    wake: Notify,
    runtime: Handle,
}

#[derive(Debug)]
struct Machine {
    node: Node<CurrentVersion>,
    /// When the timer's task looks next.
    wake_at: Option<Duration>,
    /// The registration that the transport names.
    named: Option<Boot>,
}

/// Waiters for results of the machine.
#[derive(Debug, Default)]
struct Operations {
    waiters: HashMap<OpId, Waiter>,
    replies: HashMap<CallId, oneshot::Sender<PeerResponse<CurrentVersion>>>,
    ids: u64,
}

#[derive(Debug)]
enum Waiter {
    Read(oneshot::Sender<Result<CurrentVersion>>),
    Write {
        begun: Option<oneshot::Sender<()>>,
        ended: oneshot::Sender<WriteOutcome>,
    },
}

/// End of a write for its waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteOutcome {
    Acknowledged,
    /// No holder has confirmed it, and its window is too long to be waited out.
    Unconfirmed,
    Failed,
}

/// A write that has begun at the machine.
#[derive(Debug)]
pub(super) struct BegunWrite {
    pub(super) op: OpId,
    pub(super) begun: oneshot::Receiver<()>,
    pub(super) ended: oneshot::Receiver<WriteOutcome>,
}

/// Removes a waiter that is dropped before its end.
struct WaiterGuard<'a>(&'a Core, OpId);

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        self.0.operations.lock().waiters.remove(&self.1);
    }
}

/// Removes the place of a response that is not wanted any more.
struct ReplyGuard<'a>(&'a Core, CallId);

impl Drop for ReplyGuard<'_> {
    fn drop(&mut self) {
        self.0.operations.lock().replies.remove(&self.1);
    }
}

impl Core {
    pub(super) fn new(
        settings: DriverSettings,
        etcd: Etcd,
        transport: Arc<dyn PeerTransport>,
    ) -> Self {
        let Settings {
            node,
            process,
            timing,
            shards,
            ..
        } = settings.machine;
        let machine = Node::new(settings.machine.clone(), boottime());
        let leases = Arc::clone(&machine.leases.table);
        let machine = Machine {
            node: machine,
            wake_at: None,
            named: None,
        };
        Self {
            node,
            process,
            timing,
            shards: u64::from(shards),
            etcd,
            transport,
            machine: Mutex::new(machine),
            leases,
            operations: Mutex::default(),
            buckets: RwLock::default(),
            directory: Mutex::new(Directory::new(node, timing.claim_delay)),
            published: Mutex::new(Published::new(settings)),
            record_changed: Notify::new(),
            generation: Mutex::default(),
            relist: Notify::new(),
            start: Start::new(),
            suspects: Mutex::default(),
            faults: Faults::default(),
            counters: Counters::default(),
            health: Mutex::default(),
            batches: Semaphore::new(BATCHES_AT_ONCE),
            write_places: WritePlaces::default(),
            peer_reads: Arc::new(Semaphore::new(MAX_PEER_READS)),
            wake: Notify::new(),
            runtime: Handle::current(),
        }
    }

    /// Gives an event to the machine, and begins its actions.
    pub(super) fn handle(self: &Arc<Self>, event: Event<CurrentVersion>) {
        self.handle_failed(event, None);
    }

    /// As [`Self::handle`]; reads that end with the event have failed with `failure`.
    fn handle_failed(self: &Arc<Self>, event: Event<CurrentVersion>, failure: Option<&Arc<Error>>) {
        let actions = self.take_in(event);
        self.carry_out(actions, failure);
    }

    /// Gives events to the machine one after another, and begins the actions of all together: the requests among them to one node are
    /// one message.
    pub(super) fn handle_all(
        self: &Arc<Self>,
        events: impl IntoIterator<Item = Event<CurrentVersion>>,
    ) {
        let actions = events.into_iter().flat_map(|event| self.take_in(event));
        let actions = actions.collect();
        self.carry_out(actions, None);
    }

    fn take_in(&self, event: Event<CurrentVersion>) -> Vec<Action<CurrentVersion>> {
        let (actions, sooner, member) = {
            let mut machine = self.machine.lock();
            // Read under the lock: the event came in before, however long the lock was waited for.
            let actions = machine.node.handle(boottime(), event);
            let next = machine.node.next_timer();
            let sooner = next.is_some_and(|next| machine.wake_at.is_none_or(|at| next < at));
            let boot = machine.node.me().map(|me| me.boot);
            let changed = std::mem::replace(&mut machine.named, boot) != boot;
            (actions, sooner, changed.then_some(boot))
        };
        if let Some(boot) = member {
            self.transport.registered(boot, self.etcd.cluster_id());
        }
        if sooner {
            self.wake.notify_one();
        }
        actions
    }

    fn carry_out(
        self: &Arc<Self>,
        actions: Vec<Action<CurrentVersion>>,
        failure: Option<&Arc<Error>>,
    ) {
        let mut changes = Vec::new();
        let mut sends = Vec::new();
        for action in actions {
            match action {
                Action::Etcd(call, request) if is_batched(request) => changes.push((call, request)),
                Action::Etcd(call, request) => {
                    let core = Arc::clone(self);
                    self.spawn(async move { core.ask_etcd(call, request).await });
                }
                Action::Send(to, call, request, limit) => {
                    sends.push(((to, limit), (call, request)))
                }
                Action::Reply(_, call, response) => {
                    if let Some(waiter) = self.operations.lock().replies.remove(&call) {
                        // A caller that has left needs none.
                        let _ = waiter.send(response);
                    }
                }
                Action::AskOrigin(question, key) => {
                    let core = Arc::clone(self);
                    self.spawn(async move { core.ask_origin(question, key).await });
                }
                Action::WriteOrigin(op) => {
                    if let Some(Waiter::Write { begun, .. }) =
                        self.operations.lock().waiters.get_mut(&op)
                        && let Some(begun) = begun.take()
                    {
                        let _ = begun.send(());
                    }
                }
                Action::Finish(op, outcome) => self.finish(op, outcome, failure),
            }
        }
        for ((to, limit), batch) in batches(sends) {
            let core = Arc::clone(self);
            self.spawn(async move { core.send(to, batch, limit).await });
        }
        for batch in changes.chunks(BATCH) {
            let (core, batch) = (Arc::clone(self), batch.to_vec());
            self.spawn(async move { core.change_shards(batch).await });
        }
    }

    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        // It ends by itself, within its own limits.
        drop(self.runtime.spawn(task));
    }

    fn finish(&self, op: OpId, outcome: Outcome<CurrentVersion>, failure: Option<&Arc<Error>>) {
        self.counters.ended(&outcome);
        let waiter = self.operations.lock().waiters.remove(&op);
        match waiter {
            Some(Waiter::Read(waiter)) => {
                let result = match outcome {
                    Outcome::Version(version, _) => Ok(version),
                    _ => Err(failure.map_or_else(no_response, clone_error)),
                };
                let _ = waiter.send(result);
            }
            Some(Waiter::Write { ended, .. }) => {
                let _ = ended.send(match outcome {
                    Outcome::Acknowledged { .. } => WriteOutcome::Acknowledged,
                    Outcome::SlowDown => WriteOutcome::Unconfirmed,
                    _ => WriteOutcome::Failed,
                });
            }
            None => {}
        }
    }

    async fn ask_origin(self: Arc<Self>, question: QuestionId, key: Key) {
        let source = self.buckets.read().source(&key.bucket);
        let result = match (source, Path::parse(&key.path)) {
            (Ok(source), Ok(path)) => source.request(&path).await,
            (Err(error), _) => Err(error),
            (_, Err(error)) => Err(error.into()),
        };
        match result {
            Ok(version) => self.handle(Event::Version(question, Some(version))),
            Err(error) => {
                let error = Arc::new(error);
                self.handle_failed(Event::Version(question, None), Some(&error));
            }
        }
    }

    /// Reads the version of an object by the rules of the machine.
    pub(super) async fn read(
        self: &Arc<Self>,
        key: Key,
        window: Duration,
    ) -> Result<CurrentVersion> {
        let (waiter, version) = oneshot::channel();
        let op = {
            let mut operations = self.operations.lock();
            let op = OpId(operations.next_id());
            operations.waiters.insert(op, Waiter::Read(waiter));
            op
        };
        let _guard = WaiterGuard(self, op);
        self.handle(Event::Read(op, key, window));
        version.await.unwrap_or_else(|_| Err(no_response()))
    }

    /// Begins writes of several objects at the machine.
    pub(super) fn begin(self: &Arc<Self>, keys: Vec<Key>, window: Duration) -> Vec<BegunWrite> {
        let mut events = Vec::with_capacity(keys.len());
        let mut writes = Vec::with_capacity(keys.len());
        for key in keys {
            let (begin, begun) = oneshot::channel();
            let (end, ended) = oneshot::channel();
            let waiter = Waiter::Write {
                begun: Some(begin),
                ended: end,
            };
            let mut operations = self.operations.lock();
            let op = OpId(operations.next_id());
            operations.waiters.insert(op, waiter);
            drop(operations);
            events.push(Event::Write(op, key, window));
            writes.push(BegunWrite { op, begun, ended });
        }
        self.handle_all(events);
        writes
    }

    /// Has the machine respond to the requests of a message of another node.
    pub(super) async fn requests(
        self: &Arc<Self>,
        from: NodeId,
        requests: Vec<PeerRequest>,
    ) -> Vec<PeerResponse<CurrentVersion>> {
        let mut events = Vec::with_capacity(requests.len());
        let mut waiting = Vec::with_capacity(requests.len());
        for request in requests {
            let (waiter, response) = oneshot::channel();
            let mut operations = self.operations.lock();
            let call = CallId(operations.next_id());
            operations.replies.insert(call, waiter);
            drop(operations);
            events.push(Event::Request(from, call, request));
            waiting.push((ReplyGuard(self, call), response));
        }
        self.handle_all(events);
        let mut responses = Vec::with_capacity(waiting.len());
        for (_guard, response) in waiting {
            responses.push(response.await.unwrap_or(PeerResponse::NotMine));
        }
        responses
    }

    /// Looks at the machine.
    pub(super) fn look<T>(&self, look: impl FnOnce(&Node<CurrentVersion>) -> T) -> T {
        look(&self.machine.lock().node)
    }

    pub(super) fn status(self: &Arc<Self>) -> Status {
        // So that a deadline that has passed counts.
        self.handle(Event::Tick);
        self.look(Node::status)
    }

    pub(super) fn me(&self) -> Option<Member> {
        self.look(Node::me)
    }

    /// Gives the machine its timers. Never returns.
    pub(super) async fn run_timers(self: Arc<Self>) {
        loop {
            let next = {
                let mut machine = self.machine.lock();
                machine.wake_at = machine.node.next_timer();
                machine.wake_at
            };
            let now = boottime();
            match next {
                Some(at) if at <= now => {
                    self.handle(Event::Tick);
                    tokio::task::yield_now().await;
                }
                Some(at) => tokio::select! {
                    () = tokio::time::sleep(at - now) => {}
                    () = self.wake.notified() => {}
                },
                None => self.wake.notified().await,
            }
        }
    }
}

impl Operations {
    fn next_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }
}

/// The error of a read whose question was not asked.
fn no_response() -> Error {
    Error::Generic {
        store: "Bywash",
        source: "the cluster's part of this node has ended; restart the node".into(),
    }
}
