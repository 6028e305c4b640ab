use super::*;

fn route(method: &str, target: &str, headers: &[(&str, &str)]) -> S3Result<&'static str> {
    let mut request = http::Request::builder().method(method).uri(target);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let (parts, ()) = request.body(()).unwrap().into_parts();
    let path = parts.uri.path().strip_prefix('/').unwrap();
    let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
    let found = Target {
        is_virtual: false,
        bucket: bucket.to_owned(),
        key: key.to_owned(),
        unknown_host: None,
    };
    operation(&parts, &found, &Query::new(&parts.uri))
}

const COPY: [(&str, &str); 1] = [("x-amz-copy-source", "/b/other")];

#[test]
fn served_operations_pass_with_the_parameters_of_clients() {
    for (method, target, operation) in [
        ("GET", "/", "ListBuckets"),
        ("GET", "/?x-id=ListBuckets&max-buckets=5", "ListBuckets"),
        ("GET", "/b?foo=bar", "ListObjects"),
        ("GET", "/b/?list-type=2&prefix=acl", "ListObjectsV2"),
        ("GET", "/b?uploads&max-uploads=3", "ListMultipartUploads"),
        (
            "GET",
            "/b/k?versionId=null&partNumber=1&x-id=GetObject",
            "GetObject",
        ),
        ("GET", "/b/k?uploadId=u&max-parts=1", "ListParts"),
        ("HEAD", "/b/k?unknown", "HeadObject"),
        (
            "PUT",
            "/b/k?x-id=PutObject&X-Amz-Date=d&x-amz-checksum-crc32=AAAAAA%3D%3D",
            "PutObject",
        ),
        ("PUT", "/b/k?partNumber=1&uploadId=u", "UploadPart"),
        ("PUT", "/b/k?tagging&versionId=null", "PutObjectTagging"),
        ("POST", "/b?delete", "DeleteObjects"),
        ("POST", "/b/k?uploads", "CreateMultipartUpload"),
        ("DELETE", "/b/k?versionId=null", "DeleteObject"),
        (
            "DELETE",
            "/b/k?uploadId=u&AWSAccessKeyId=a&Signature=s&Expires=1",
            "AbortMultipartUpload",
        ),
    ] {
        assert_eq!(
            route(method, target, &[]).unwrap(),
            operation,
            "{method} {target}"
        );
    }
    assert_eq!(route("PUT", "/b/k", &COPY).unwrap(), "CopyObject");
    let part = route("PUT", "/b/k?partNumber=1&uploadId=u", &COPY);
    assert_eq!(part.unwrap(), "UploadPartCopy");
}

#[test]
fn sub_resources_and_unknown_parameters_of_writes_are_not_implemented() {
    for (method, target) in [
        ("DELETE", "/b/k?annotation&annotationName=a"),
        ("PUT", "/b/k?annotation&annotationName=a"),
        ("PUT", "/b/k?renameObject"),
        ("PUT", "/b/k?RenameObject"),
        ("PUT", "/b/k?encryption"),
        ("PUT", "/b/k?versionId=null"),
        ("PUT", "/b/k?newer"),
        ("PUT", "/b/k?x-amz-copy-source=%2Fb%2Fother"),
        ("PUT", "/b/k?X-Amz-Meta-A=b"),
        ("PUT", "/b?abac"),
        ("DELETE", "/b?metadataConfiguration"),
        ("DELETE", "/b?newer"),
        ("DELETE", "/b/k?newer=1"),
        ("GET", "/b/k?annotation"),
        ("GET", "/b?abac"),
        ("GET", "/b/k?policy"),
        ("HEAD", "/b/k?tagging"),
        ("HEAD", "/b?versions"),
        ("POST", "/b/k"),
        ("POST", "/"),
        ("DELETE", "/"),
        ("PATCH", "/b/k"),
        ("GET", "/b/k?x-id=GetObjectAnnotation"),
        ("DELETE", "/b/k?x-id=DeleteObjectAnnotation"),
    ] {
        let error = route(method, target, &[]).unwrap_err();
        assert_eq!(
            *error.code(),
            S3ErrorCode::NotImplemented,
            "{method} {target}"
        );
    }
    let rename = route("PUT", "/b/k", &[("x-amz-rename-source", "/b/other")]);
    assert_eq!(*rename.unwrap_err().code(), S3ErrorCode::NotImplemented);
}

#[test]
fn contradictions_are_invalid() {
    for (method, target) in [
        ("PUT", "/b/k?tagging&partNumber=1&uploadId=u"),
        ("GET", "/b?acl&policy"),
        ("GET", "/b?list-type=2&list-type=2"),
        ("GET", "/b?list-type=1"),
        ("PUT", "/b/k?partNumber=1"),
        ("PUT", "/b/k?uploadId=u"),
    ] {
        let error = route(method, target, &[]).unwrap_err();
        assert_eq!(
            *error.code(),
            S3ErrorCode::InvalidArgument,
            "{method} {target}"
        );
    }
    for (method, target) in [
        ("PUT", "/b/k?tagging"),
        ("DELETE", "/b/k"),
        ("POST", "/b/k?uploads"),
        ("GET", "/b/k"),
    ] {
        let error = route(method, target, &COPY).unwrap_err();
        assert_eq!(
            *error.code(),
            S3ErrorCode::InvalidRequest,
            "{method} {target}"
        );
    }
    let range = [("x-amz-copy-source-range", "bytes=0-1")];
    let error = route("PUT", "/b/k", &range).unwrap_err();
    assert_eq!(*error.code(), S3ErrorCode::InvalidRequest);
}

#[test]
fn sub_resources_are_sorted_and_include_all_supported() {
    assert!(SUBRESOURCES.is_sorted_by_key(|name| name.to_ascii_lowercase()));
    for method in ["GET", "HEAD", "PUT", "POST", "DELETE"] {
        for level in [
            ResourceLevel::Service,
            ResourceLevel::Bucket,
            ResourceLevel::Object,
        ] {
            for (name, _) in served(&method.parse().unwrap(), level) {
                assert!(is_subresource(name), "{name}");
            }
        }
    }
}
