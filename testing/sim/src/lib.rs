//! A seeded world for the engine: an origin that fails on cue, and an oracle that knows the truth.
//!
//! [`SimOrigin`] is an object store in memory that implements [`bywash::Origin`]. What goes wrong,
//! when, and for how long is drawn from one seed ([`Weather`]) or written down by a test
//! ([`SimOrigin::script`]). Every version of every object it ever held is in the [`Oracle`], with
//! the moments it became current and was replaced, so whatever a reader saw can be judged: all
//! bytes of exactly one version that it was allowed to see, or an error it was allowed to get.
//!
//! [`Scenario`] draws a whole run from a seed (engine settings, objects, readers, writers, faults)
//! and judges every read. Time is tokio's paused clock, so an hour of stalls costs nothing and the
//! same seed gives the same run.
//!
//! [`server`] has stores that are spoken to by HTTP, on real sockets: each follows the upload protocol of its kind to the
//! letter, until a drawn or written fault strikes; [`pass_time_by_turns`] keeps the machine's pauses out of their limits.
//! [`WatchedStore`] is any other store, whose requests a test holds or ends.

#![forbid(unsafe_code)]

mod fault;
mod oracle;
mod origin;
mod pattern;
mod scenario;
pub mod server;
mod turns;
mod watched;

pub use fault::{Fault, FaultKind, Weather};
pub use oracle::{Moment, Observation, Oracle, Outcome, Rules, Verdict, Version, Violation, Wrote};
pub use origin::{Operation, Request, SimOrigin, Validators};
pub use pattern::pattern;
pub use scenario::{Consume, Failure, Plan, Report, Scenario, observe, paused_runtime};
pub use turns::pass_time_by_turns;
pub use watched::{Passing, Watch, WatchedStore};
