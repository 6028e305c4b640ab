//! Requests drawn at random: reads in the common form, most with something unusual or wrong.

use bywash_support::sign::{KEY, SECRET, Signer, date, sha256_hex};
use chrono::Utc;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{CONFINED, objects};
use crate::resident::both_ways::{self, BUCKETS, encode};

/// How a request is signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Signed {
    Header,
    Query,
    Both,
    No,
}

/// A request, before it is signed.
#[derive(Debug, Clone)]
pub(super) struct Drawn {
    pub(super) method: &'static str,
    host: String,
    bucket: String,
    key: String,
    /// Writes the path in an encoding that signatures do not use.
    path: fn(&str) -> String,
    query: Vec<(&'static str, String)>,
    /// Name, value, and whether it is signed.
    headers: Vec<(&'static str, String, bool)>,
    signed: Signed,
    access: (String, String),
    region: String,
    service: String,
    /// Time of the draw, in seconds since 1970: both sends have the same signature, also if a second passes between them.
    drawn_at: i64,
    /// Seconds that the signature is old.
    age: i64,
    expires: String,
    payload: String,
    /// Changes the request after it was signed.
    tamper: fn(String) -> String,
}

fn canonical(path: &str) -> String {
    encode(path, true)
}

fn unchanged(request: String) -> String {
    request
}

impl Drawn {
    pub(super) fn get(key: &str) -> Self {
        Self {
            method: "GET",
            host: "127.0.0.1".to_owned(),
            bucket: BUCKETS[0].to_owned(),
            key: key.to_owned(),
            path: canonical,
            query: Vec::new(),
            headers: Vec::new(),
            signed: Signed::Header,
            access: (KEY.to_owned(), SECRET.to_owned()),
            region: "us-east-1".to_owned(),
            service: "s3".to_owned(),
            drawn_at: Utc::now().timestamp(),
            age: 0,
            expires: "3000".to_owned(),
            payload: sha256_hex(b""),
            tamper: unchanged,
        }
    }

    /// Reads of all objects.
    pub(super) fn warm_up() -> Vec<Self> {
        let all = BUCKETS.iter().flat_map(|bucket| {
            objects().into_iter().map(|(key, _)| Self {
                bucket: (*bucket).to_owned(),
                ..Self::get(key)
            })
        });
        all.collect()
    }

    /// Reads that the fast path serves.
    pub(super) fn plain() -> Vec<Self> {
        let get = || Self::get("plain");
        let head = Self {
            method: "HEAD",
            ..get()
        };
        let presigned = Self {
            signed: Signed::Query,
            ..get()
        };
        vec![get(), head, presigned]
    }

    pub(super) fn is_presigned(&self) -> bool {
        self.signed == Signed::Query
    }

    fn signer(&self) -> Signer {
        Signer {
            access_key: self.access.0.clone(),
            secret_key: self.access.1.clone(),
            date: date(self.drawn_at - self.age),
            host: self.host.clone(),
            region: self.region.clone(),
            service: self.service.clone(),
        }
    }

    /// The signed request, with further header lines.
    pub(super) fn bytes(&self, more: &str) -> Vec<u8> {
        let signer = self.signer();
        let plain = match self.bucket.as_str() {
            "" => format!("/{}", self.key),
            bucket => format!("/{bucket}/{}", self.key),
        };
        let mut query = self.query.clone();
        let mut headers = self.headers.clone();
        headers.push(("host", self.host.clone(), true));
        if matches!(self.signed, Signed::Header | Signed::Both) {
            headers.push(("x-amz-content-sha256", self.payload.clone(), true));
            headers.push(("x-amz-date", signer.date.clone(), true));
        }
        headers.sort();
        let signed = || headers.iter().filter(|(_, _, signed)| *signed);
        let mut names: Vec<_> = signed().map(|(name, _, _)| *name).collect();
        names.dedup();
        let names = names.join(";");
        let lines: String = signed()
            .map(|(name, value, _)| format!("{name}:{value}\n"))
            .collect();
        let signature = |query: &[(&'static str, String)], payload: &str| {
            let mut pairs: Vec<_> = query
                .iter()
                .map(|(name, value)| format!("{}={}", encode(name, false), encode(value, false)))
                .collect();
            pairs.sort();
            let path = canonical(&plain);
            let (method, pairs) = (self.method, pairs.join("&"));
            signer.sign_request(&format!(
                "{method}\n{path}\n{pairs}\n{lines}\n{names}\n{payload}"
            ))
        };
        let credential = format!("{}/{}", signer.access_key, signer.scope());
        if matches!(self.signed, Signed::Query | Signed::Both) {
            query.extend([
                ("X-Amz-Algorithm", "AWS4-HMAC-SHA256".to_owned()),
                ("X-Amz-Credential", credential.clone()),
                ("X-Amz-Date", signer.date.clone()),
                ("X-Amz-Expires", self.expires.clone()),
                ("X-Amz-SignedHeaders", names.clone()),
            ]);
            let signature = signature(&query, "UNSIGNED-PAYLOAD");
            query.push(("X-Amz-Signature", signature));
        }
        let mut text = format!("{} {}", self.method, (self.path)(&plain));
        for (index, (name, value)) in query.iter().enumerate() {
            text.push(if index == 0 { '?' } else { '&' });
            text.push_str(&format!("{name}={}", encode(value, false)));
        }
        text.push_str(" HTTP/1.1\r\nConnection: close\r\n");
        for (name, value, _) in &headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        if matches!(self.signed, Signed::Header | Signed::Both) {
            let signature = signature(&self.query, &self.payload);
            text.push_str(&format!(
                "authorization: AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}\r\n"
            ));
        }
        text.push_str(more);
        text.push_str("\r\n");
        (self.tamper)(text).into_bytes()
    }
}

/// A source of requests.
pub(super) struct Draws {
    random: StdRng,
    e_tags: Vec<String>,
}

impl Draws {
    pub(super) fn new(seed: u64, e_tags: Vec<String>) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            e_tags,
        }
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        both_ways::pick(&mut self.random, from)
    }

    pub(super) fn next(&mut self) -> Drawn {
        let (key, length) = self.pick(&objects());
        let mut drawn = Drawn::get(key);
        drawn.method = self.pick(&["GET", "GET", "HEAD"]);
        drawn.signed = self.pick(&[Signed::Header, Signed::Query]);
        if self.random.random_bool(0.3) {
            let range = both_ways::range(&mut self.random, length);
            drawn.headers.push(("range", range, true));
        }
        if self.random.random_bool(0.15) {
            let tag = self.tag();
            drawn.headers.push(("if-match", tag, true));
        }
        if self.random.random_bool(0.15) {
            let mode = self.pick(&["ENABLED", "ENABLED", "enabled", ""]);
            drawn
                .headers
                .push(("x-amz-checksum-mode", mode.to_owned(), true));
        }
        if self.random.random_bool(0.1) {
            drawn.payload = "UNSIGNED-PAYLOAD".to_owned();
        }
        for _ in 0..self.pick(&[0, 0, 1, 1, 1, 2]) {
            match self.random.random_range(0..4) {
                0 => self.change_signature(&mut drawn),
                1 => self.change_target(&mut drawn),
                2 => self.add_header(&mut drawn),
                _ => self.tamper(&mut drawn),
            }
        }
        drawn
    }

    fn tag(&mut self) -> String {
        let tags = self.e_tags.clone();
        let tag = self.pick(&tags);
        let forms = [
            tag.clone(),
            tag.clone(),
            tag.replace('"', ""),
            format!("W/{tag}"),
            format!("{tag}, \"x\""),
            "\"other\"".to_owned(),
            "\"other\"".to_owned(),
            "*".to_owned(),
            String::new(),
        ];
        self.pick(&forms)
    }

    fn change_signature(&mut self, drawn: &mut Drawn) {
        match self.random.random_range(0..11) {
            0 => drawn.access.1.push('x'),
            1 => drawn.access.0 = self.pick(&["nobody", "", "a/b", "a b"]).to_owned(),
            2 => drawn.access = (CONFINED.0.to_owned(), CONFINED.1.to_owned()),
            3 => drawn.age = self.pick(&[-5, 100, 600, 1000, 5000, -600, -1000]),
            4 => {
                let expires = ["0", "60", "604800", "604801", "-1", "x", "", "0060", "60.5"];
                drawn.expires = self.pick(&expires).to_owned();
            }
            5 => {
                drawn.region = self
                    .pick(&["eu-west-1", "US", "EU", "x", "us east"])
                    .to_owned()
            }
            6 => drawn.service = self.pick(&["sts", "S3", "iam"]).to_owned(),
            7 => drawn.signed = self.pick(&[Signed::Both, Signed::No]),
            8 | 9 => drawn.age = self.pick(&[1000, 5000, 700_000]),
            _ => {
                let payloads = [sha256_hex(b"x"), "x".to_owned(), String::new()];
                drawn.payload = self.pick(&payloads);
            }
        }
    }

    fn change_target(&mut self, drawn: &mut Drawn) {
        let paths: [fn(&str) -> String; 6] = [
            str::to_owned,
            |path| canonical(path).to_lowercase(),
            |path| canonical(path).replace('a', "%61"),
            |path| canonical(path).replacen("/", "//", 2),
            |path| format!("{}%2F", canonical(path)),
            |path| canonical(path).replace("%20", "+"),
        ];
        let hosts = [
            "localhost",
            "127.0.0.1:80",
            "[::1]",
            "s3.example.com",
            "S3.Example.com",
            "bucket.localhost",
            "bucket.other.org",
            "other.org",
        ];
        let pairs = [
            ("x-id", "GetObject"),
            ("x-id", "GetObject"),
            ("x-id", "HeadObject"),
            ("partNumber", "1"),
            ("versionId", "null"),
            ("versionId", "other"),
            ("acl", ""),
            ("response-content-type", "text/y"),
            ("unknown", "x y"),
        ];
        match self.random.random_range(0..6) {
            0 => {
                drawn.key = self
                    .pick(&["absent", "", "a/", "a/b/c", "plain/", "../plain"])
                    .to_owned()
            }
            1 => drawn.bucket = self.pick(&["other", "absent", "Bucket", ""]).to_owned(),
            2 => drawn.path = self.pick(&paths),
            3 => drawn.host = self.pick(&hosts).to_owned(),
            _ => {
                let (name, value) = self.pick(&pairs);
                drawn.query.push((name, value.to_owned()));
            }
        }
    }

    fn add_header(&mut self, drawn: &mut Drawn) {
        let headers = [
            ("user-agent", "Boto3/1.44 md/Botocore#1  x"),
            ("user-agent", "aws-sdk-java/2"),
            ("amz-sdk-invocation-id", "9b1e"),
            ("amz-sdk-request", "attempt=1; max=3"),
            ("accept-encoding", "identity"),
            ("x-amz-user-agent", "aws-sdk-js/3"),
            ("content-type", "application/x"),
            ("x-forwarded-for", "10.0.0.1"),
            ("origin", "http://example.com"),
            ("x-amz-security-token", "t"),
            ("x-amz-expected-bucket-owner", "1"),
            ("x-amz-copy-source", "/other/plain"),
            ("x-amz-meta-a", "b"),
            ("if-none-match", "*"),
            ("if-none-match", "\"other\""),
            ("if-modified-since", "Thu, 01 Dec 1994 16:00:00 GMT"),
            ("if-unmodified-since", "Thu, 01 Dec 1994 16:00:00 GMT"),
            ("if-range", "\"other\""),
            ("x-amz-server-side-encryption-customer-algorithm", "AES256"),
        ];
        let (name, value) = self.pick(&headers);
        let is_signed = self.random.random_bool(0.6);
        drawn.headers.push((name, value.to_owned(), is_signed));
    }

    fn tamper(&mut self, drawn: &mut Drawn) {
        let changes: [fn(String) -> String; 8] = [
            |request| request.replace("Signature=", "Signature=0"),
            |request| request.replacen("Signature=a", "Signature=b", 1),
            |request| request.replace("bytes=", "bytes=1"),
            |request| request.replacen("/bucket/", "/other/", 1),
            |request| request.replace("SignedHeaders=", "SignedHeaders=a;"),
            |request| request.replace("x-amz-date: ", "x-amz-date: 1"),
            |request| request.replace("Credential=the", "Credential=other"),
            |request| request.replace("Expires=3000", "Expires=3001"),
        ];
        // Half of all signatures begin with one of these digits.
        let wrong: [fn(String) -> String; 2] = [
            |request| change_last_digit(request, "Signature="),
            |request| change_last_digit(request, "Signature="),
        ];
        drawn.tamper = if self.random.random_bool(0.5) {
            self.pick(&changes)
        } else {
            self.pick(&wrong)
        };
    }
}

/// Changes the last digit of the signature that begins after `mark`.
fn change_last_digit(request: String, mark: &str) -> String {
    let Some(start) = request.find(mark) else {
        return request;
    };
    let last = start + mark.len() + 63;
    let digit = if &request[last..=last] == "0" {
        "1"
    } else {
        "0"
    };
    format!("{}{digit}{}", &request[..last], &request[last + 1..])
}
