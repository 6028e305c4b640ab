//! Tests of valid and of rejected keys.

use crate::server::{BUCKETS, Server};

#[tokio::test]
async fn keys_that_cannot_be_stored_are_rejected() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        let before = server
            .get(&format!("/{bucket}?list-type=2"), &[])
            .await
            .expect(200)
            .tags("Key");
        for key in [
            "a//b",
            "/a",
            "./a",
            "../folder/a",
            "a/..",
            "a/./b",
            "nul%00byte",
            "line%0Abreak",
            "%2E%2E/a",
            "a//",
        ] {
            let target = format!("/{bucket}/{key}");
            let reply = server
                .put(&target, &[], b"x")
                .await
                .expect_error(400, "InvalidArgument");
            assert!(
                reply.tag("Message").unwrap().contains("cannot be stored"),
                "{key}"
            );
            server
                .send("POST", &format!("{target}?uploads"), &[], b"")
                .await
                .expect_error(400, "InvalidArgument");
            let copy = [("x-amz-copy-source", format!("/{bucket}/a"))];
            let copy: Vec<_> = copy
                .iter()
                .map(|(name, value)| (*name, value.as_str()))
                .collect();
            server
                .put(&target, &copy, b"")
                .await
                .expect_error(400, "InvalidArgument");
        }
        // No object has such a key, as in S3 none that is absent.
        for key in ["a/", "a/../b", "a//b", "/a", "line%0Abreak"] {
            let target = format!("/{bucket}/{key}");
            for query in ["", "?tagging", "?acl"] {
                let target = format!("{target}{query}");
                let read = server.get(&target, &[]).await;
                read.expect_error(404, "NoSuchKey");
            }
            let head = server.send("HEAD", &target, &[], b"").await;
            assert_eq!(head.status, 404);
            let copy = [("x-amz-copy-source", &*target)];
            let copied = server.put(&format!("/{bucket}/to"), &copy, b"").await;
            copied.expect_error(404, "NoSuchKey");
            server.send("DELETE", &target, &[], b"").await.expect(204);
            let if_match = [("if-match", "*")];
            let conditional = server.send("DELETE", &target, &if_match, b"").await;
            conditional.expect_error(404, "NoSuchKey");
        }
        let keys = "<Delete><Object><Key>a//b</Key></Object><Object><Key>c</Key></Object></Delete>";
        let target = format!("/{bucket}?delete");
        let deleted = server.send("POST", &target, &[], keys.as_bytes()).await;
        assert_eq!(deleted.expect(200).tags("Key"), ["a//b", "c"]);
        let after = server
            .get(&format!("/{bucket}?list-type=2"), &[])
            .await
            .expect(200)
            .tags("Key");
        assert_eq!(before, after);
    }
}

#[tokio::test]
async fn keys_with_unusual_characters_are_preserved() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        let keys = [
            "%20blank",
            "pl%2Bus",
            "a%26b%3Cc%3E",
            "%C3%BC/%F0%9F%A6%80",
            "per%25cent",
            "q%3Fm",
            "back%5Cslash",
            "..a",
            "a..b",
        ];
        for key in keys {
            server
                .put(&format!("/{bucket}/{key}"), &[], key.as_bytes())
                .await
                .expect(200);
        }
        server
            .put(&format!("/{bucket}/{}", "k".repeat(200)), &[], b"k")
            .await
            .expect(200);
        for key in keys {
            let reply = server
                .get(&format!("/{bucket}/{key}"), &[])
                .await
                .expect(200);
            assert_eq!(reply.text(), key);
        }
    }
}

#[tokio::test]
async fn keys_too_long_or_not_text_are_rejected() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        let long = "k".repeat(1025);
        for method in ["GET", "PUT", "DELETE"] {
            server
                .send(method, &format!("/{bucket}/{long}"), &[], b"")
                .await
                .expect_error(400, "KeyTooLongError");
        }
        server
            .get(&format!("/{bucket}/%FF"), &[])
            .await
            .expect_error(400, "InvalidURI");
    }
}
