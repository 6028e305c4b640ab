#![allow(clippy::unwrap_used, reason = "tests")]
use super::*;

fn uploads_page(inside: &str) -> Result<UploadsPage, String> {
    let text = format!("<ListMultipartUploadsResult>{inside}</ListMultipartUploadsResult>");
    UploadsPage::parse(text.as_bytes())
}

#[test]
fn page_of_uploads_is_read_below_the_prefix() {
    let upload = |key: &str, id: &str, more: &str| {
        format!(
            "<Upload><Initiator><ID>me</ID></Initiator><Key>{key}</Key><UploadId>{id}</UploadId>\
             <Initiated>2026-01-02T03:04:05.000Z</Initiated>{more}</Upload>"
        )
    };
    let crc = "<ChecksumAlgorithm>CRC32C</ChecksumAlgorithm>";
    let whole = format!("{crc}<ChecksumType>FULL_OBJECT</ChecksumType>");
    let inside = [
        "<EncodingType>url</EncodingType><NextKeyMarker>p/z+%2B</NextKeyMarker>".to_owned(),
        "<NextUploadIdMarker>last</NextUploadIdMarker><IsTruncated>true</IsTruncated>".to_owned(),
        upload("p/a+b%2Bc%C3%A9", "1", &whole),
        upload("p/d/e", "2", crc),
        upload("p/d/e", "3", ""),
        // No path of this origin names these: they are not below the prefix, or are written otherwise.
        ["p2/f", "p", "p/", "p/g/", "p//h", "/p/i", "p/%FF"]
            .map(|key| upload(key, "4", ""))
            .concat(),
    ]
    .concat();
    let page = uploads_page(&inside).unwrap();
    let next = page.next.clone().unwrap();
    let prefix = Path::from("p");
    let found: Vec<_> = page.sessions(&prefix).collect();
    let seen: Vec<_> = found
        .iter()
        .map(|open| (open.object.as_ref(), &*open.token.0))
        .collect();
    let wanted = [("a b+cé", "object 1"), ("d/e", "parts 2"), ("d/e", "md5 3")];
    assert_eq!(seen, wanted);
    assert_eq!(found[0].modified.to_rfc3339(), "2026-01-02T03:04:05+00:00");
    let query = uploads_query(&prefix, Some(&next));
    for pair in [
        ("prefix", "p/"),
        ("key-marker", "p/z +"),
        ("upload-id-marker", "last"),
        ("max-uploads", "1000"),
    ] {
        assert!(query.contains(&(pair.0, pair.1.to_owned())), "{query:?}");
    }
    let first = uploads_query(&Path::ROOT, None);
    let names: Vec<_> = first.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["uploads", "max-uploads", "encoding-type"]);
}

#[test]
fn keys_are_decoded_only_where_the_store_encoded_them() {
    let inside = "<IsTruncated>false</IsTruncated><NextKeyMarker>x</NextKeyMarker><Upload><Key>a+b%20c</Key>\
                  <UploadId>1</UploadId><Initiated>2026-01-02T03:04:05Z</Initiated></Upload>";
    let page = uploads_page(inside).unwrap();
    assert_eq!(page.next, None, "the list is whole");
    let found: Vec<_> = page.sessions(&Path::ROOT).collect();
    assert_eq!(found[0].object.as_ref(), "a+b%20c");
}

#[test]
fn unreadable_list_of_uploads_is_an_error_and_not_an_empty_list() {
    assert!(
        uploads_page("<IsTruncated>false</IsTruncated>")
            .unwrap()
            .uploads
            .is_empty()
    );
    let undated = "<IsTruncated>false</IsTruncated><Upload><Key>a</Key><UploadId>1</UploadId>\
                   <Initiated>long ago</Initiated></Upload>";
    for bad in ["", "<IsTruncated>true</IsTruncated>", undated] {
        assert!(uploads_page(bad).is_err(), "{bad}");
    }
    for bad in ["", "<html></html>", "<ListMultipartUploadsResult><IsTrunc"] {
        assert!(UploadsPage::parse(bad.as_bytes()).is_err(), "{bad}");
    }
}
