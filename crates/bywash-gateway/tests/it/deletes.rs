//! Tests of deletes.

use crate::conditions::e_tag_of;
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
            .expect_error(400, "InvalidArgument");
        server
            .send("DELETE", &format!("/{bucket}/b?versionId=null"), &[], b"")
            .await
            .expect(204);
    }
}

#[tokio::test]
async fn conditional_deletes_follow_their_conditions() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        let target = format!("/{bucket}/key");
        let delete =
            async |headers: &[(&str, &str)]| server.send("DELETE", &target, headers, b"").await;
        delete(&[("If-Match", "*")])
            .await
            .expect_error(404, "NoSuchKey");
        delete(&[("x-amz-if-match-size", "9")]).await.expect(204);
        server.put(&target, &[], b"data").await.expect(200);
        let (e_tag, _) = e_tag_of(&server, &target).await;
        let past = "Mon, 01 Jan 2001 00:00:00 GMT";
        for wrong in [
            ("If-Match", "\"other\""),
            ("x-amz-if-match-size", "5"),
            ("x-amz-if-match-last-modified-time", past),
        ] {
            delete(&[wrong])
                .await
                .expect_error(412, "PreconditionFailed");
            delete(&[("If-Match", &e_tag), wrong]).await;
            assert_eq!(server.get(&target, &[]).await.text(), "data", "{wrong:?}");
        }
        delete(&[("x-amz-if-match-size", "-1")])
            .await
            .expect_error(400, "InvalidArgument");
        // Neither `*` in quotes nor a weak ETag stands for any version.
        for none in ["\"*\"", &format!("W/{e_tag}")] {
            delete(&[("If-Match", none)])
                .await
                .expect_error(400, "InvalidArgument");
            let xml = none.replace('"', "&quot;");
            let xml = format!("<Delete><Object><Key>key</Key><ETag>{xml}</ETag></Object></Delete>");
            let target = format!("/{bucket}?delete");
            let reply = server.send("POST", &target, &[], xml.as_bytes()).await;
            assert_eq!(reply.expect(200).tags("Code"), ["InvalidArgument"]);
            assert_eq!(
                server.get(&format!("/{bucket}/key"), &[]).await.text(),
                "data"
            );
        }
        for right in [
            vec![("If-Match", "*")],
            vec![("If-Match", &*e_tag)],
            vec![
                ("If-Match", e_tag.trim_matches('"')),
                ("x-amz-if-match-size", "4"),
            ],
            vec![("x-amz-if-match-size", "4")],
        ] {
            delete(&right).await.expect(204);
            server
                .get(&target, &[])
                .await
                .expect_error(404, "NoSuchKey");
            server.put(&target, &[], b"data").await.expect(200);
        }
        let (_, modified) = e_tag_of(&server, &target).await;
        let time = ("x-amz-if-match-last-modified-time", &*modified);
        delete(&[time]).await.expect(204);
    }
}

#[tokio::test]
async fn conditions_of_a_bulk_delete_are_those_of_each_key() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        for key in ["a", "b", "c", "d", "plain"] {
            server
                .put(&format!("/{bucket}/{key}"), &[], b"data")
                .await
                .expect(200);
        }
        let (e_tag, modified) = e_tag_of(&server, &format!("/{bucket}/a")).await;
        let xml = format!(
            "<Delete><Object><Key>a</Key><ETag>{e_tag}</ETag><Size>4</Size></Object>\
             <Object><Key>b</Key><ETag>&quot;other&quot;</ETag></Object><Object><Key>c</Key><Size>5</Size></Object>\
             <Object><Key>d</Key><LastModifiedTime>{modified}</LastModifiedTime><Size>9</Size></Object>\
             <Object><Key>plain</Key></Object><Object><Key>absent</Key><ETag>x</ETag></Object></Delete>"
        );
        let reply = server
            .send("POST", &format!("/{bucket}?delete"), &[], xml.as_bytes())
            .await
            .expect(200);
        assert_eq!(reply.tags("Deleted").len(), 2, "{}", reply.text());
        let failed = "PreconditionFailed";
        assert_eq!(reply.tags("Code"), [failed, failed, failed, "NoSuchKey"]);
        let listed = server
            .get(&format!("/{bucket}?list-type=2"), &[])
            .await
            .expect(200);
        assert_eq!(listed.tags("Key"), ["b", "c", "d"]);
        for key in ["b", "c", "d"] {
            server
                .send("DELETE", &format!("/{bucket}/{key}"), &[], b"")
                .await
                .expect(204);
        }
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
        assert_eq!(reply.tags("Deleted").len(), 4, "{}", reply.text());
        assert_eq!(reply.tag("Code"), None);
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
