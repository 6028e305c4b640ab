//! Cached reads: turns a GET request into a body made of pinned blocks.
//!
//! 1. *Resolve* the current version: from memory if it is fresh, else from the origin. There is one such request per
//!    path at a time (single flight). If the read needs data anyway, that request is the first ranged GET
//!    ([`resolve`]), so a cold read costs no extra round trip.
//! 2. *Check* preconditions and the range against that version.
//! 3. *Stream* the blocks of the range ([`body`]). A resident block is pinned, a loading one is followed as it fills,
//!    and an absent one is loaded together with its absent neighbours ([`plan`], [`range_fetch`]). Bodies of the S3
//!    endpoint keep little memory for slow clients ([`pieces`]).
//!
//! Most reads of a warm cache are of one resident block of a fresh version. An endpoint may take them by [`resident`],
//! without a future, and reads all others as above.
//!
//! All bytes are loaded by [`fetch`], also for whole downloads: the only ranged GET with retries, hedging and a stall
//! timeout.
//!
//! In a cluster, the version is requested from its authority ([`resolve`]), the bytes of a ranged GET from the node that owns them or the
//! origin ([`peer_fetch`]); requests of other nodes are served by [`serve`].
//!
//! The response begins only after the first bytes have arrived. If the version has disappeared by then, the read
//! starts over, once.

mod abandoned;
mod body;
mod body_check;
mod copied;
mod copy_buffer;
mod demand;
mod digest_check;
mod download;
mod fetch;
mod foreign;
mod get;
mod hedge;
mod hedged_fetch;
mod latencies;
mod lease;
mod loans;
mod ownership;
mod peer_fetch;
mod pieces;
mod plan;
mod range_fetch;
mod ranged;
mod ranges;
mod readahead;
mod resident;
mod resolution;
mod resolve;
mod sequential;
mod serve;
mod shared_error;
mod single_flight;
mod stale;
mod to_file;
mod written;

pub(crate) use abandoned::AbandonedMemory;
pub(crate) use demand::PeerDemand;
pub(crate) use download::DownloadFlights;
pub use download::{Download, DownloadOptions};
pub(crate) use foreign::ForeignBlocks;
pub(crate) use get::{get, get_for_copy, head_now};
pub(crate) use latencies::LatencyWindow;
pub use lease::{Lease, LeasedRead, SharedBytes};
pub(crate) use lease::{lease, lease_ranges};
pub(crate) use loans::Loans;
pub use pieces::PieceByPiece;
pub(crate) use ranges::get_ranges;
pub(crate) use readahead::{ReadaheadBudget, ReadaheadLimits};
pub use resident::ResidentObject;
pub(crate) use resolution::FlightResult;
pub(crate) use resolve::request_version;
pub(crate) use sequential::SequentialDetector;
pub use shared_error::clone_error;
pub(crate) use single_flight::SingleFlight;
pub use stale::MayBeStale;
pub use to_file::{DownloadedFile, FileDownloadOptions};
pub(crate) use to_file::{FileDownloadQueues, FileDownloads};
pub(crate) use written::{keep_upload, keep_written};
