//! The admin address as a door of its own: long documents for clients that do not read them.

use std::sync::Arc;

use bytes::Bytes;
use bywash_support::http::head;
use bywash_support::sign::{KEY, SECRET};

use super::hold::Hold;
use super::raw::{admin, open, read_slowly, send_available};
use super::{Case, case};
use crate::CaseError;
use crate::context::CaseContext;
use crate::process::Setup;
use crate::record::Class;

pub(super) const CASES: &[Case] = &[case!("admin-readers", admin_readers)];

/// Buckets, each with lines of its own in what is served.
const BUCKETS: u64 = 200;
/// Clients that send a request and read nothing.
const READERS: u64 = 300;
/// What they request in turn, in part without a key.
const TARGETS: [&str; 4] = ["/metrics", "/stats", "/", "/uploads"];

/// 300 clients that request metrics, statistics, the page and the uploads of 200 buckets and do not read, while another one does.
async fn admin_readers(context: &mut CaseContext) -> Result<(), CaseError> {
    context.serve(Setup::default()).await?;
    for number in 0..BUCKETS {
        let name = format!("bucket-{number}");
        context.create_bucket(&name).await?;
        let object = Bytes::from_static(b"x");
        context
            .well_behaved()
            .put(&format!("/{name}/k"), &object)
            .await;
    }
    let address = context.admin();
    let token = format!("Token {KEY}:{SECRET}");
    let hold = Hold::new(READERS);
    let attack = context.run_concurrently(READERS, |number| {
        let headers = [("Authorization", token.as_str())];
        let target = TARGETS[number as usize % TARGETS.len()];
        let request = head("GET", target, &headers);
        let hold = Arc::clone(&hold);
        async move {
            let Ok(mut socket) = open(address, [127, 0, 0, 1]).await else {
                return hold.during(async {}).await;
            };
            // Several on one connection: each response waits behind one that is not read.
            for _ in 0..4 {
                send_available(&mut socket, request.as_bytes()).await;
            }
            hold.during(read_slowly(&mut socket)).await;
        }
    });
    let scraping = async {
        for _ in 0..5 {
            let request = ("GET", "/metrics");
            admin(context, Class::WellBehaved, request, b"", &[200]).await;
        }
    };
    tokio::join!(attack, hold.end(context), scraping);
    for target in TARGETS {
        admin(context, Class::WellBehaved, ("GET", target), b"", &[200]).await;
    }
    Ok(())
}
