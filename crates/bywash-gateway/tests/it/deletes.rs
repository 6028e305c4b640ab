//! Tests of deletes.

use crate::server::{BUCKETS, Server};

#[tokio::test]
async fn deleted_object_is_gone_and_can_be_deleted_again() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        for key in ["a", "b"] {
            server
                .put(&format!("/{bucket}/{key}"), &[], b"x")
                .await
                .expect(200);
        }
        server
            .send("DELETE", &format!("/{bucket}/a"), &[], b"")
            .await
            .expect(204);
        server
            .send("DELETE", &format!("/{bucket}/a"), &[], b"")
            .await
            .expect(204);
        server
            .get(&format!("/{bucket}/a"), &[])
            .await
            .expect_error(404, "NoSuchKey");
        server
            .send("DELETE", &format!("/{bucket}/b?versionId=7"), &[], b"")
            .await
            .expect_error(404, "NoSuchVersion");
        server
            .send("DELETE", &format!("/{bucket}/b?versionId=null"), &[], b"")
            .await
            .expect(204);
    }
}

#[tokio::test]
async fn bulk_delete_removes_each_key() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        for key in ["c", "d&amp"] {
            server
                .put(&format!("/{bucket}/{key}"), &[], b"x")
                .await
                .expect(200);
        }
        let xml = "<Delete><Object><Key>c</Key><VersionId>null</VersionId></Object><Object><Key>d&amp;amp</Key></Object>\
                   <Object><Key>absent</Key></Object><Object><Key>x//y</Key></Object></Delete>";
        let reply = server
            .send("POST", &format!("/{bucket}?delete"), &[], xml.as_bytes())
            .await
            .expect(200);
        assert_eq!(reply.tags("Deleted").len(), 3, "{}", reply.text());
        assert_eq!(reply.tag("Code").as_deref(), Some("InvalidArgument"));
        let quiet = "<Delete><Quiet>true</Quiet><Object><Key>absent</Key></Object></Delete>";
        let reply = server
            .send("POST", &format!("/{bucket}?delete"), &[], quiet.as_bytes())
            .await
            .expect(200);
        assert!(reply.tags("Deleted").is_empty());
        let listed = server
            .get(&format!("/{bucket}?list-type=2"), &[])
            .await
            .expect(200);
        assert!(listed.tags("Key").is_empty(), "{}", listed.text());
        let many: String = (0..1001)
            .map(|n| format!("<Object><Key>{n}</Key></Object>"))
            .collect();
        server
            .send(
                "POST",
                &format!("/{bucket}?delete"),
                &[],
                format!("<Delete>{many}</Delete>").as_bytes(),
            )
            .await
            .expect_error(400, "MalformedXML");
    }
}
