//! Deterministic simulation for tests of the engine: an origin with injected faults, and an oracle that judges reads.
//!
//! [`SimOrigin`] is an object store in memory that implements [`bywash::Origin`]. Its faults and latencies are drawn from a
//! seed ([`FaultProfile`]) or scripted by a test ([`SimOrigin::script`]). The [`Oracle`] records every version of every object,
//! with the moments at which it became current and was replaced. A correct read has all bytes of exactly one visible version,
//! or an error that a fault or a change of the object explains.
//!
//! [`Scenario`] draws a whole run from a seed (engine settings, objects, readers, writers, faults) and judges every read.
//! Runs use tokio's paused clock: stalls cost no real time, and a seed gives the same run.
//!
//! [`WrappedMemory`] is a plain origin in memory behind a store that a test has wrapped, without seeds and judges.
//!
//! [`server`] has HTTP stores on real sockets. Each implements the upload protocol of its kind exactly, except for injected
//! faults. [`advance_clock_by_ticks`] keeps pauses of the machine from expiring timeouts.

#![forbid(unsafe_code)]

mod fault;
mod oracle;
mod origin;
mod scenario;
pub mod server;
mod ticks;
mod wrapped_memory;

pub use fault::{Fault, FaultKind, FaultProfile};
pub use oracle::{
    Moment, Observation, Oracle, Outcome, Rules, Verdict, Version, Violation, WriteEffect,
};
pub use origin::{Operation, Request, SimOrigin, Validators};
pub use scenario::{Consume, Failure, Plan, Report, Scenario, observe, paused_runtime};
pub use ticks::advance_clock_by_ticks;
pub use wrapped_memory::WrappedMemory;
