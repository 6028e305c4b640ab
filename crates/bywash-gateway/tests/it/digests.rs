//! Responses to GETs of whole objects whose bytes do not have the digest that the origin states.

use std::sync::Arc;
use std::time::Duration;

use bywash::{Consistency, ContentDigest};
use bywash_gateway::S3Config;
use bywash_sim::{Fault, FaultProfile, SimOrigin};
use object_store::path::Path;

use crate::server::Server;

const LENGTH: usize = (5 << 20) + 7;

fn crc32c(bytes: &[u8]) -> ContentDigest {
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes);
    ContentDigest::Crc32c(u32::try_from(crc).unwrap())
}

#[tokio::test]
async fn body_with_another_digest_ends_before_its_length_or_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    let engine = Server::engine(64 << 20, &root);
    let origin = SimOrigin::new(
        1,
        FaultProfile {
            latency: Duration::ZERO..Duration::ZERO,
            pause: Duration::ZERO..Duration::ZERO,
            piece: 256 << 10..256 << 10,
            faults: Vec::new(),
        },
    );
    origin.state_digest(crc32c);
    let (large, small) = (Path::from("large"), Path::from("small"));
    let content = origin.write(&large, LENGTH).body.clone();
    origin.write(&small, 1000);
    let flip = || vec![Fault::Flip { at: 77 }];
    origin.script(&large, [flip()]);
    origin.script(&small, [flip(), flip()]);
    let origin = Arc::new(origin);
    engine
        .mount("flips", origin, Consistency::Immutable)
        .unwrap();
    let server = Server::start_with(engine, root, S3Config::anonymous()).await;

    let cut = server.get("/flips/large", &[]).await.expect(200);
    assert_eq!(cut.header("content-length"), Some(&*LENGTH.to_string()));
    assert!(!cut.complete && cut.body.len() >= 4 << 20);
    let again = server.get("/flips/large", &[]).await.expect(200);
    assert!(again.body == content);

    let failed = server.get("/flips/small", &[]).await;
    failed.expect_error(500, "InternalError");
    server.get("/flips/small", &[]).await.expect(200);
    let stats = &server.engine.stats().buckets["flips"];
    assert_eq!(stats.digest_mismatches, 3);
}
