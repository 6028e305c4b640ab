//! Nodes that do not agree about the owners of stripes, and change their views.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use bywash::Consistency;
use bywash_support::faulty_store::Fault as OriginFault;
use bywash_support::pattern;
use object_store::path::Path;
use tokio::time::{Instant, sleep};

use super::fake::{BLOCK, Nodes};

const LENGTH: usize = 5 * BLOCK + 17;
const FLIPS: usize = 1000;

/// Number of the views that the nodes have now.
static VIEWS: AtomicUsize = AtomicUsize::new(0);

/// Each takes the other for the owner, or itself, or both agree, or that depends on the stripe.
fn by_views(node: usize, stripe: u64) -> usize {
    match VIEWS.load(SeqCst) % 4 {
        0 => 1 - node,
        1 => node,
        2 => stripe as usize % 2,
        _ => (stripe as usize + node) % 2,
    }
}

/// Readers at both nodes read the same cold objects while views change, several times during each read.
#[tokio::test(start_paused = true)]
async fn case_11_no_read_hangs_while_views_disagree_and_change_a_thousand_times() {
    let nodes = Nodes::with(2, by_views, Consistency::default(), |builder| builder);
    let nodes = Arc::new(nodes);
    let flips = tokio::spawn(async {
        for _ in 0..FLIPS {
            sleep(Duration::from_millis(1)).await;
            VIEWS.fetch_add(1, SeqCst);
        }
    });
    let (mut reads, mut slowest) = (0, Duration::ZERO);
    for object in 0.. {
        if flips.is_finished() {
            break;
        }
        let path = Path::from(format!("object-{object}"));
        let data = pattern(object, LENGTH);
        nodes.store(&path, data.clone()).await;
        for _ in 0..4 {
            let delay = OriginFault::DelayResponse(Duration::from_millis(3));
            nodes.faults.fault("get", "", delay);
        }
        let readers = (0..8).map(|reader| {
            let (nodes, path) = (Arc::clone(&nodes), path.clone());
            tokio::spawn(async move {
                let begun = Instant::now();
                let read = nodes.read(reader % 2, &path).await.unwrap();
                (read, begun.elapsed())
            })
        });
        for ended in futures::future::join_all(readers).await {
            let (read, time) = ended.unwrap();
            assert!(read == data, "object {object}");
            slowest = slowest.max(time);
            reads += 1;
        }
    }
    flips.await.unwrap();
    println!("{reads} reads, the slowest {slowest:?}");
    assert!(reads > 500, "{reads}");
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    let asked = nodes.ring.asked.lock();
    let both = [(0, 1), (1, 0)].map(|pair| asked.contains(&pair));
    assert_eq!(both, [true; 2], "each has asked the other");
}
