//! Requests drawn at random: signed as clients sign, most with something unusual, and altered afterwards in one place.

use std::fmt;

use bywash_support::sign::{KEY, SECRET, Signer, date, sha256_hex};
use chrono::Utc;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::resident::both_ways::{encode, pick};

/// A second key that the server knows.
pub(super) const OTHER: (&str, &str) = ("other/key", "other-secret");

/// A request as it is sent.
#[derive(Debug, Clone)]
pub(super) struct Sent {
    pub(super) method: &'static str,
    /// Path and query.
    pub(super) target: String,
    pub(super) headers: Vec<(String, Vec<u8>)>,
    pub(super) body: Vec<u8>,
}

impl fmt::Display for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {}", self.method, self.target)?;
        for (name, value) in &self.headers {
            writeln!(f, "{name}: {}", String::from_utf8_lossy(value))?;
        }
        write!(f, "\n{}", String::from_utf8_lossy(&self.body))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Header,
    Query,
    Both,
    No,
}

// Values of the payload header.
const SIGNED_CHUNKS: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";
const SIGNED_TRAILER: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER";
const UNSIGNED_TRAILER: &str = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";
const UNSIGNED: &str = "UNSIGNED-PAYLOAD";

/// A request before it is signed.
struct Unsigned {
    method: &'static str,
    path: String,
    /// Writes the path as it is sent.
    sent_path: fn(&str) -> String,
    /// Writes the path as it is signed.
    signed_path: fn(&str) -> String,
    query: Vec<(String, String)>,
    /// Writes names and values of the query as they are sent.
    sent_query: fn(&str) -> String,
    host: String,
    signed_host: String,
    /// Name, value, and whether it is signed.
    headers: Vec<(&'static str, String, bool)>,
    /// Names that are signed without a header.
    absent: Vec<&'static str>,
    separator: &'static str,
    names_in_order: bool,
    form: Form,
    access: (&'static str, &'static str),
    region: &'static str,
    service: &'static str,
    /// Seconds since 1970.
    date: i64,
    /// The day of the scope is another one.
    other_day: bool,
    expires: String,
    payload: String,
    body: Vec<u8>,
}

fn canonical_path(path: &str) -> String {
    encode(path, true)
}

fn canonical_text(text: &str) -> String {
    encode(text, false)
}

/// A source of requests.
pub(super) struct Draws {
    random: StdRng,
    methods: &'static [&'static str],
}

impl Draws {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            methods: &["GET", "GET", "HEAD", "PUT", "PUT", "DELETE", "POST"],
        }
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        pick(&mut self.random, from)
    }

    fn chance(&mut self, probability: f64) -> bool {
        self.random.random_bool(probability)
    }

    pub(super) fn next(&mut self) -> Sent {
        let mut drawn = self.plain();
        for _ in 0..self.pick(&[0, 0, 1, 1, 2]) {
            match self.random.random_range(0..5) {
                0 => self.change_access(&mut drawn),
                1 => self.change_path(&mut drawn),
                2 => self.change_query(&mut drawn),
                3 => self.add_header(&mut drawn),
                _ => self.change_payload(&mut drawn),
            }
        }
        let mut sent = drawn.sign(self);
        if self.chance(0.4) {
            self.alter(&mut sent);
        }
        sent
    }

    fn plain(&mut self) -> Unsigned {
        let method = self.pick(self.methods);
        let body = match method {
            "PUT" | "POST" => b"some bytes of a body".to_vec(),
            _ => Vec::new(),
        };
        let payload = if self.chance(0.7) {
            sha256_hex(&body)
        } else {
            UNSIGNED.to_owned()
        };
        let paths = ["/bucket/key", "/bucket/a/b", "/bucket", "/bucket/a b"];
        Unsigned {
            method,
            path: self.pick(&paths).to_owned(),
            sent_path: canonical_path,
            signed_path: canonical_path,
            query: Vec::new(),
            sent_query: canonical_text,
            host: "127.0.0.1".to_owned(),
            signed_host: "127.0.0.1".to_owned(),
            headers: Vec::new(),
            absent: Vec::new(),
            separator: self.pick(&[", ", ", ", ","]),
            names_in_order: true,
            form: self.pick(&[Form::Header, Form::Header, Form::Query]),
            access: (KEY, SECRET),
            region: "us-east-1",
            service: "s3",
            date: Utc::now().timestamp(),
            other_day: false,
            expires: "3000".to_owned(),
            payload,
            body,
        }
    }

    fn change_access(&mut self, drawn: &mut Unsigned) {
        match self.random.random_range(0..10) {
            0 => drawn.access.1 = "wrong",
            1 => drawn.access.0 = self.pick(&["nobody", "", "a b", "a/b", "a,b"]),
            2 => drawn.access = OTHER,
            // Away from the limits, because time passes between two verdicts.
            3 => drawn.date -= self.pick(&[-5, 100, 600, 880, 1000, 5000, -600, -880, -1000]),
            4 => {
                let expires = [
                    "0",
                    "60",
                    "604800",
                    "604801",
                    "-1",
                    "x",
                    "",
                    "0060",
                    "60.5",
                    "4294967296",
                ];
                drawn.expires = self.pick(&expires).to_owned();
                drawn.date -= 30;
            }
            5 => {
                let regions = ["eu-west-1", "US", "", "us east", "a_b", "\u{fc}", "a.b"];
                drawn.region = self.pick(&regions);
            }
            6 => drawn.service = self.pick(&["sts", "S3", "iam", "s3express"]),
            7 => drawn.form = self.pick(&[Form::Both, Form::No]),
            8 => drawn.other_day = true,
            _ => drawn.date -= self.pick(&[2000, 5000, 700_000]),
        }
    }

    fn change_path(&mut self, drawn: &mut Unsigned) {
        let keys = [
            "/bucket/a=b",
            "/bucket/a+b",
            "/bucket/\u{fc}",
            "/bucket/a//b",
            "/bucket/%41",
            "/bucket/a%2Fb",
            "/bucket/(a)*'!",
            "/bucket/a&b,c;d:e@f$g",
            "/",
        ];
        let forms: [fn(&str) -> String; 7] = [
            canonical_path,
            |path| canonical_path(path).to_lowercase(),
            |path| canonical_path(path).replace('a', "%61"),
            |path| canonical_path(path).replace("%20", "+"),
            |path| {
                let raw = [
                    "%3D", "%2B", "%26", "%40", "%24", "%28", "%29", "%2A", "%27", "%21",
                ];
                let chars = ["=", "+", "&", "@", "$", "(", ")", "*", "'", "!"];
                let text = canonical_path(path);
                let pairs = raw.iter().zip(chars);
                pairs.fold(text, |text, (raw, char)| text.replace(raw, char))
            },
            |path| canonical_path(path).replacen('/', "//", 2),
            |path| format!("{}%2F", canonical_path(path)),
        ];
        drawn.path = self.pick(&keys).to_owned();
        match self.random.random_range(0..4) {
            0 => drawn.sent_path = self.pick(&forms),
            1 => {
                drawn.sent_path = self.pick(&forms);
                drawn.signed_path = drawn.sent_path;
            }
            2 => {
                let hosts = ["localhost", "127.0.0.1:80", "other.org:9000", "[::1]"];
                drawn.host = self.pick(&hosts).to_owned();
                drawn.signed_host = if self.chance(0.5) {
                    drawn.host.clone()
                } else {
                    drawn.host.split(':').next().unwrap_or_default().to_owned()
                };
            }
            _ => {}
        }
    }

    fn change_query(&mut self, drawn: &mut Unsigned) {
        let pairs = [
            ("x-id", "GetObject"),
            ("partNumber", "1"),
            ("prefix", "a b/c"),
            ("prefix", "a+b"),
            ("prefix", "\u{fc}=&"),
            ("prefix", ""),
            ("a", "1"),
            ("A", "2"),
            ("a", "0"),
            ("a~*", "(x)"),
            ("a-b", "1"),
            ("acl", ""),
        ];
        for _ in 0..self.pick(&[1, 1, 2, 3]) {
            let (name, value) = self.pick(&pairs);
            drawn.query.push((name.to_owned(), value.to_owned()));
        }
        let forms: [fn(&str) -> String; 5] = [
            canonical_text,
            canonical_text,
            |text| canonical_text(text).replace("%20", "+"),
            |text| canonical_text(text).replace("%2B", "+"),
            |text| canonical_text(text).replace("%2F", "/").to_lowercase(),
        ];
        drawn.sent_query = self.pick(&forms);
    }

    fn add_header(&mut self, drawn: &mut Unsigned) {
        let headers = [
            ("range", "bytes=0-9"),
            ("content-type", "text/x;  charset=y"),
            ("x-amz-meta-a", "  b   c "),
            ("x-amz-meta-a", "b"),
            ("x-amz-meta-a", ""),
            ("x-amz-meta-b", "\u{fc}"),
            ("x-amz-meta-b", "\"a  b\""),
            ("x-amz-acl", "private"),
            ("x-amz-security-token", "t"),
            ("x-amz-copy-source", "/bucket/key"),
            ("x-amz-date", "20200101T000000Z"),
            ("user-agent", "x  y\tz"),
            ("date", "Thu, 01 Dec 1994 16:00:00 GMT"),
            ("x-amz-decoded-content-length", "20"),
            ("content-encoding", "gzip"),
        ];
        for _ in 0..self.pick(&[1, 1, 2]) {
            let (name, value) = self.pick(&headers);
            let is_signed = self.chance(0.7);
            drawn.headers.push((name, value.to_owned(), is_signed));
            if self.chance(0.2) {
                // Sent twice.
                drawn.headers.push((name, value.to_owned(), is_signed));
            }
        }
        if self.chance(0.15) {
            drawn
                .absent
                .push(self.pick(&["expect", "x-amz-absent", "a"]));
        }
        drawn.names_in_order = !self.chance(0.1);
    }

    fn change_payload(&mut self, drawn: &mut Unsigned) {
        let payloads = [
            SIGNED_CHUNKS,
            SIGNED_CHUNKS,
            SIGNED_TRAILER,
            UNSIGNED_TRAILER,
            UNSIGNED,
            "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD",
            "STREAMING-OTHER",
            "x",
            "",
        ];
        drawn.payload = match self.random.random_range(0..4) {
            0 => sha256_hex(b"another body"),
            1 => sha256_hex(&drawn.body).to_uppercase(),
            _ => self.pick(&payloads).to_owned(),
        };
        if drawn.payload.starts_with("STREAMING") {
            drawn.form = Form::Header;
            let length = drawn.body.len().to_string();
            if !self.chance(0.05) {
                let name = "x-amz-decoded-content-length";
                drawn.headers.push((name, length, true));
            }
            if drawn.payload.ends_with("TRAILER") && !self.chance(0.1) {
                let trailer = "x-amz-checksum-crc32".to_owned();
                drawn.headers.push(("x-amz-trailer", trailer, true));
            }
        }
    }

    /// Changes one place of a signed request.
    fn alter(&mut self, sent: &mut Sent) {
        let is_presigned = sent.target.contains("X-Amz-Signature");
        match self.random.random_range(0..8) {
            0 if !sent.body.is_empty() => {
                let at = self.random.random_range(0..sent.body.len());
                sent.body[at] ^= 1 << self.random.random_range(0..8);
            }
            0 => sent.method = "GET",
            1 => sent.method = self.pick(self.methods),
            2 => {
                let at = self.random.random_range(0..sent.headers.len());
                let _ = sent.headers.remove(at);
            }
            3 => {
                let at = self.random.random_range(0..sent.headers.len());
                let copy = sent.headers[at].clone();
                sent.headers.push(copy);
            }
            4 | 5 if is_presigned => {
                let query = sent.target.find('?').unwrap_or(0);
                let mut bytes = sent.target.split_off(query + 1).into_bytes();
                self.alter_text(&mut bytes);
                sent.target.push_str(&String::from_utf8_lossy(&bytes));
            }
            4 | 5 => {
                let headers = sent.headers.iter_mut();
                let found = headers.rev().find(|(name, _)| name == "authorization");
                if let Some((_, value)) = found {
                    self.alter_text(value);
                }
            }
            6 => {
                let mut bytes = std::mem::take(&mut sent.target).into_bytes();
                self.alter_text(&mut bytes);
                sent.target = String::from_utf8_lossy(&bytes).into_owned();
            }
            _ => {
                let at = self.random.random_range(0..sent.headers.len());
                self.alter_text(&mut sent.headers[at].1);
            }
        }
    }

    /// Replaces, removes, adds, or doubles a byte, or changes the case of a letter.
    fn alter_text(&mut self, text: &mut Vec<u8>) {
        if text.is_empty() {
            return;
        }
        let at = self.random.random_range(0..text.len());
        let byte = self.pick(b"abfgXZ0179 ,;=/%+&-_.~?");
        match self.random.random_range(0..5) {
            0 => text[at] = byte,
            1 => drop(text.remove(at)),
            2 => text.insert(at, byte),
            3 => text.insert(at, text[at]),
            _ => {
                text[at] ^= if text[at].is_ascii_alphabetic() {
                    32
                } else {
                    1
                }
            }
        }
    }
}

impl Unsigned {
    fn signer(&self) -> Signer {
        Signer {
            access_key: self.access.0.to_owned(),
            secret_key: self.access.1.to_owned(),
            date: date(self.date),
            host: self.signed_host.clone(),
            region: self.region.to_owned(),
            service: self.service.to_owned(),
        }
    }

    fn sign(mut self, draws: &mut Draws) -> Sent {
        let signer = self.signer();
        let in_header = matches!(self.form, Form::Header | Form::Both);
        let in_query = matches!(self.form, Form::Query | Form::Both);
        if in_header {
            self.headers
                .push(("x-amz-content-sha256", self.payload.clone(), true));
            self.headers.push(("x-amz-date", signer.date.clone(), true));
        }
        let mut credential = format!("{}/{}", signer.access_key, signer.scope());
        if self.other_day {
            credential = credential.replacen(&signer.date[..8], "20200229", 1);
        }
        let (names, lines) = self.signed_headers();
        let sent_names = if self.names_in_order {
            names.clone()
        } else {
            names.rsplit(';').collect::<Vec<_>>().join(";")
        };
        if in_query {
            let parameters = [
                ("X-Amz-Algorithm", "AWS4-HMAC-SHA256"),
                ("X-Amz-Credential", &credential),
                ("X-Amz-Date", &signer.date),
                ("X-Amz-Expires", &self.expires),
                ("X-Amz-SignedHeaders", &sent_names),
            ];
            let parameters = parameters.map(|(name, value)| (name.to_owned(), value.to_owned()));
            self.query.extend(parameters);
        }
        let signature =
            |payload: &str| signer.sign_request(&self.canonical(&lines, &names, payload));
        let presigned = in_query.then(|| signature(UNSIGNED));
        let authorization = in_header.then(|| signature(&self.payload));
        if let Some(signature) = presigned {
            self.query.push(("X-Amz-Signature".to_owned(), signature));
        }
        let target = self.target();
        let mut headers = vec![("host".to_owned(), self.host.clone().into_bytes())];
        for (name, value, _) in &self.headers {
            headers.push(((*name).to_owned(), value.clone().into_bytes()));
        }
        let body = self.framed(&signer, authorization.as_deref().unwrap_or_default(), draws);
        if let Some(signature) = authorization {
            let comma = self.separator;
            let value = format!(
                "AWS4-HMAC-SHA256 Credential={credential}{comma}SignedHeaders={sent_names}{comma}Signature={signature}"
            );
            headers.push(("authorization".to_owned(), value.into_bytes()));
        }
        Sent {
            method: self.method,
            target,
            headers,
            body,
        }
    }

    /// The canonical request.
    fn canonical(&self, lines: &str, names: &str, payload: &str) -> String {
        let encoded = |pair: &(String, String)| [&pair.0, &pair.1].map(|text| canonical_text(text));
        let mut pairs: Vec<_> = self.query.iter().map(encoded).collect();
        pairs.sort();
        let pairs: Vec<_> = pairs.iter().map(|pair| pair.join("=")).collect();
        let (method, path, query) = (self.method, (self.signed_path)(&self.path), pairs.join("&"));
        format!("{method}\n{path}\n{query}\n{lines}\n{names}\n{payload}")
    }

    /// Path and query as they are sent.
    fn target(&self) -> String {
        let mut target = (self.sent_path)(&self.path);
        for (index, (name, value)) in self.query.iter().enumerate() {
            target.push(if index == 0 { '?' } else { '&' });
            let write = if name.starts_with("X-Amz-") {
                canonical_text
            } else {
                self.sent_query
            };
            target.push_str(&format!("{name}={}", write(value)));
        }
        target
    }

    /// Names of the signed headers, and their lines.
    fn signed_headers(&self) -> (String, String) {
        let mut signed: Vec<(&str, Vec<&str>)> = Vec::new();
        let host = ("host", self.signed_host.as_str());
        let own = self.headers.iter().filter(|(_, _, signed)| *signed);
        let own = own.map(|(name, value, _)| (*name, value.as_str()));
        for (name, value) in std::iter::once(host).chain(own) {
            match signed.iter_mut().find(|(known, _)| *known == name) {
                Some((_, values)) => values.push(value),
                None => signed.push((name, vec![value])),
            }
        }
        // A header may be sent also by an unsigned line.
        for (name, value, is_signed) in &self.headers {
            if let Some((_, values)) = signed.iter_mut().find(|(known, _)| known == name)
                && !is_signed
            {
                values.push(value);
            }
        }
        signed.extend(self.absent.iter().map(|name| (*name, vec![""])));
        signed.sort();
        let names: Vec<_> = signed.iter().map(|(name, _)| *name).collect();
        let line = |(name, values): &(&str, Vec<&str>)| {
            let words = |value: &&str| value.split_whitespace().collect::<Vec<_>>().join(" ");
            let values: Vec<_> = values.iter().map(words).collect();
            format!("{name}:{}\n", values.join(","))
        };
        (names.join(";"), signed.iter().map(line).collect())
    }

    /// The body as it is sent. `seed`: the signature of the request.
    fn framed(&self, signer: &Signer, seed: &str, draws: &mut Draws) -> Vec<u8> {
        let is_signed = [SIGNED_CHUNKS, SIGNED_TRAILER].contains(&self.payload.as_str());
        if !is_signed && self.payload != UNSIGNED_TRAILER {
            return self.body.clone();
        }
        let (mut framed, mut previous) = (Vec::new(), seed.to_owned());
        for piece in self
            .body
            .chunks(draws.pick(&[7, 10, 100]))
            .chain([&b""[..]])
        {
            if is_signed {
                let (chunk, signature) = signer.chunk(&previous, piece);
                framed.extend_from_slice(&chunk);
                previous = signature;
            } else {
                framed.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
                framed.extend_from_slice(piece);
                framed.extend_from_slice(if piece.is_empty() { b"" } else { b"\r\n" });
            }
        }
        let trailer = "x-amz-checksum-crc32:AAAAAA==\n";
        if self.payload.ends_with("TRAILER") {
            framed.extend_from_slice(trailer.replace('\n', "\r\n").as_bytes());
        }
        if self.payload == SIGNED_TRAILER {
            let signature = signer.trailers(&previous, trailer);
            let line = format!("x-amz-trailer-signature:{signature}\r\n");
            framed.extend_from_slice(line.as_bytes());
        }
        framed.extend_from_slice(b"\r\n");
        framed
    }
}
