//! Requests on which this server and `s3s` decide differently, each kind with its reason.
//!
//! A request with two faults may be refused for either: codes of refusals are compared where the request has one fault.

use chrono::NaiveDateTime;

use super::draw::Sent;
use crate::signature::PAYLOAD;
use crate::sigv4::canonical::path;

/// A kind of requests with different verdicts.
pub(super) struct Exception {
    pub(super) name: &'static str,
    /// Codes of the verdicts here that it is for; all if empty.
    ours: &'static [&'static str],
    /// As [`Self::ours`], by `s3s`.
    theirs: &'static [&'static str],
    is_so: fn(&Facts) -> bool,
}

/// Stands for the verdict on a request that is served.
const SERVED: &str = "";
const MISMATCH: &str = "SignatureDoesNotMatch";
const MALFORMED: [&str; 2] = [
    "AuthorizationHeaderMalformed",
    "AuthorizationQueryParametersError",
];

pub(super) const EXCEPTIONS: [Exception; 33] = [
    Exception {
        name: "s3s panics at a date with a byte below 0, in builds that check",
        ours: &[],
        theirs: &["panic"],
        is_so: |_| true,
    },
    Exception {
        name: "s3s checks names of buckets before signatures",
        ours: &[],
        theirs: &["InvalidBucketName", "InvalidURI"],
        is_so: |_| true,
    },
    Exception {
        name: "two signatures are refused, and s3s takes either or none",
        ours: &["InvalidArgument"],
        theirs: &[],
        is_so: |facts| facts.signatures() > 1,
    },
    Exception {
        name: "host and each x-amz-* header must be signed",
        ours: &["AccessDenied"],
        theirs: &[],
        is_so: Facts::has_unsigned,
    },
    Exception {
        name: "any algorithm in a header is HMAC for s3s",
        ours: &MALFORMED,
        theirs: &[],
        is_so: |facts| {
            let authorization = facts.authorization();
            !authorization.is_empty() && !authorization.starts_with("AWS4-HMAC-SHA256 ")
        },
    },
    Exception {
        name: "the service is s3, and s3s takes sts too",
        ours: &MALFORMED,
        theirs: &[],
        is_so: |facts| facts.scope().get(3).is_none_or(|service| service != "s3"),
    },
    Exception {
        name: "presigned requests are good for a week",
        ours: &MALFORMED,
        theirs: &[],
        is_so: |facts| {
            facts
                .parameter("X-Amz-Expires")
                .parse::<u64>()
                .is_ok_and(|seconds| seconds > 604_800)
        },
    },
    Exception {
        name: "malformed signatures have the codes of S3",
        ours: &MALFORMED,
        theirs: &[
            "InvalidRequest",
            "NotImplemented",
            "InvalidAccessKeyId",
            "RequestTimeTooSkewed",
            "AccessDenied",
            MISMATCH,
        ],
        is_so: |_| true,
    },
    Exception {
        name: "access keys may have slashes and commas",
        ours: &[],
        theirs: &["InvalidRequest"],
        is_so: |facts| facts.key().contains(['/', ',']),
    },
    Exception {
        name: "regions have any name",
        ours: &[],
        theirs: &["InvalidRequest", MISMATCH],
        is_so: |facts| {
            let region = facts.scope().get(2).cloned().unwrap_or_default();
            let is_known =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            !region.bytes().all(is_known)
        },
    },
    Exception {
        name: "parameters of one name are sorted by value",
        ours: &[],
        theirs: &[MISMATCH],
        is_so: Facts::repeats_a_parameter,
    },
    Exception {
        name: "a signed header that is absent is empty",
        ours: &[],
        theirs: &[MISMATCH],
        is_so: |facts| {
            facts
                .signed()
                .iter()
                .any(|name| facts.headers(name).is_empty())
        },
    },
    Exception {
        name: "digests and signatures in upper case",
        ours: &[],
        theirs: &[MISMATCH, "InvalidRequest"],
        is_so: |facts| {
            let is_upper =
                |text: &str| text.len() == 64 && text.bytes().any(|byte| byte.is_ascii_uppercase());
            facts.headers(PAYLOAD).iter().any(|value| is_upper(value))
                || is_upper(&facts.signature())
                || facts.chunk_signatures().any(is_upper)
        },
    },
    Exception {
        name: "the host may be signed without its port",
        ours: &[],
        theirs: &[MISMATCH],
        is_so: |facts| facts.headers("host").iter().any(|host| host.contains(':')),
    },
    Exception {
        name: "a plus in the query may be signed as one",
        ours: &[],
        theirs: &[MISMATCH],
        is_so: |facts| facts.query.contains('+'),
    },
    Exception {
        name: "any path may be signed as it is sent",
        ours: &[],
        theirs: &[MISMATCH],
        is_so: |facts| path(&facts.path) != facts.path,
    },
    Exception {
        name: "names of signed headers in any case",
        ours: &[],
        theirs: &[MISMATCH],
        is_so: |facts| {
            facts
                .signed_text()
                .bytes()
                .any(|byte| byte.is_ascii_uppercase())
        },
    },
    Exception {
        name: "an empty name of a signed header is a name",
        ours: &[MISMATCH],
        theirs: &[],
        is_so: |facts| facts.signed().iter().any(String::is_empty),
    },
    Exception {
        name: "the kind of a payload has its own code",
        ours: &["InvalidArgument", "NotImplemented"],
        theirs: &[],
        is_so: |facts| {
            let is_digest =
                |text: &str| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            facts
                .headers(PAYLOAD)
                .iter()
                .any(|value| !is_digest(value) && *value != "UNSIGNED-PAYLOAD")
        },
    },
    Exception {
        name: "the decoded length is read after the signature, and is that of the body",
        ours: &["InvalidArgument", "RequestTimeTooSkewed", MISMATCH],
        theirs: &[],
        is_so: |facts| !facts.headers("x-amz-decoded-content-length").is_empty(),
    },
    Exception {
        name: "a header that is needed once is read once",
        ours: &[],
        theirs: &["InvalidRequest", SERVED],
        is_so: |facts| {
            ["authorization", "x-amz-date", "x-amz-trailer", PAYLOAD]
                .iter()
                .any(|name| facts.headers(name).len() > 1)
        },
    },
    Exception {
        name: "a date is read from Date too, in any form",
        ours: &[],
        theirs: &["InvalidRequest"],
        is_so: |facts| !facts.headers("date").is_empty() || facts.headers("x-amz-date").is_empty(),
    },
    Exception {
        name: "the payload must be named before the date is read; an empty header names none",
        ours: &["InvalidRequest"],
        theirs: &[MISMATCH, "RequestTimeTooSkewed"],
        is_so: |facts| facts.headers(PAYLOAD).concat().is_empty(),
    },
    Exception {
        name: "a date that is none is refused before its day is compared",
        ours: &["AccessDenied"],
        theirs: &[MISMATCH, "InvalidRequest"],
        is_so: |facts| {
            let is_date =
                |text: &&str| NaiveDateTime::parse_from_str(text, "%Y%m%dT%H%M%SZ").is_ok();
            !facts.headers("x-amz-date").iter().all(is_date)
        },
    },
    Exception {
        name: "signatures of chunks are hexadecimal, in any case",
        ours: &["InvalidRequest"],
        theirs: &[MISMATCH],
        is_so: |facts| {
            facts
                .headers(PAYLOAD)
                .concat()
                .starts_with("STREAMING-AWS4-HMAC")
        },
    },
    Exception {
        name: "names of signed headers in any order, in a query too",
        ours: &[],
        theirs: &[MISMATCH],
        is_so: |facts| facts.authorization().is_empty() && !facts.signed().is_sorted(),
    },
    Exception {
        name: "a signature in a query is any text, and its parameter of any case is not signed",
        ours: &[],
        theirs: &["InvalidRequest", MISMATCH],
        is_so: |facts| {
            let query = facts.query.to_ascii_lowercase();
            query.contains("x-amz-signature=") && !is_digest(facts.parameter("X-Amz-Signature"))
        },
    },
    Exception {
        name: "dates may lack a zero, or have a space for it",
        ours: &[],
        theirs: &["InvalidRequest"],
        is_so: |facts| {
            let in_query = facts.parameter("X-Amz-Date");
            let is_plain =
                |date: &&str| date.is_empty() || (date.len() == 16 && !date.contains([' ', '+']));
            !facts
                .headers("x-amz-date")
                .iter()
                .chain([&in_query])
                .all(is_plain)
        },
    },
    Exception {
        name: "s3s refuses more of the frames of chunks that are not signed, as trailers that are not UTF-8",
        ours: &[SERVED],
        theirs: &["InvalidRequest"],
        is_so: |facts| facts.headers(PAYLOAD) == ["STREAMING-UNSIGNED-PAYLOAD-TRAILER"],
    },
    Exception {
        name: "white space around trailers is not signed",
        ours: &[SERVED],
        theirs: &[MISMATCH],
        is_so: |facts| {
            let payload = facts.headers(PAYLOAD).concat();
            payload.ends_with("PAYLOAD-TRAILER") && facts.body.contains(['\t', '\x0c'])
        },
    },
    Exception {
        name: "s3s sees no header that is not UTF-8",
        ours: &MALFORMED,
        theirs: &[SERVED],
        is_so: |facts| facts.authorization().contains('\u{fffd}'),
    },
    Exception {
        name: "a query that is not UTF-8",
        ours: &["InvalidURI"],
        theirs: &[],
        is_so: |facts| facts.query.contains('%'),
    },
    Exception {
        name: "fields of the header in any order, with spaces, and more of them",
        ours: &[],
        theirs: &["InvalidRequest", MISMATCH],
        is_so: Facts::is_of_odd_form,
    },
];

/// The first exception by which two verdicts may differ.
pub(super) fn find(
    sent: &Sent,
    ours: &Result<String, String>,
    theirs: &Result<String, String>,
) -> Option<usize> {
    let facts = Facts::of(sent);
    let is_one = |verdict: &Result<String, String>, codes: &[&str]| {
        let code = verdict.as_ref().err().map_or(SERVED, String::as_str);
        codes.is_empty() || codes.contains(&code)
    };
    EXCEPTIONS.iter().position(|exception| {
        is_one(ours, exception.ours)
            && is_one(theirs, exception.theirs)
            && (exception.is_so)(&facts)
    })
}

fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Statements of a request, read without the code under test.
struct Facts {
    path: String,
    query: String,
    parameters: Vec<(String, String)>,
    headers: Vec<(String, String)>,
    body: String,
}

impl Facts {
    fn of(sent: &Sent) -> Self {
        let (path, query) = sent.target.split_once('?').unwrap_or((&sent.target, ""));
        let parameters = form_urlencoded::parse(query.as_bytes()).into_owned();
        let headers = sent.headers.iter();
        let text = |value: &Vec<u8>| String::from_utf8_lossy(value).into_owned();
        Self {
            path: path.to_owned(),
            query: query.to_owned(),
            body: text(&sent.body),
            parameters: parameters.collect(),
            headers: headers
                .map(|(name, value)| (name.clone(), text(value)))
                .collect(),
        }
    }

    fn headers(&self, name: &str) -> Vec<&str> {
        let headers = self.headers.iter().filter(|(known, _)| known == name);
        headers.map(|(_, value)| value.as_str()).collect()
    }

    fn authorization(&self) -> &str {
        self.headers("authorization")
            .first()
            .copied()
            .unwrap_or_default()
    }

    fn parameter(&self, name: &str) -> &str {
        let found = self.parameters.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value)
    }

    fn signatures(&self) -> usize {
        let parameters = self.parameters.iter();
        let in_query =
            parameters.filter(|(name, _)| name == "X-Amz-Signature" || name == "Signature");
        in_query.count() + self.headers("authorization").len()
    }

    /// A field of the signature, of the header or the query.
    fn field(&self, name: &str) -> &str {
        let in_query = self.parameter(&format!("X-Amz-{name}"));
        let mut fields = self.authorization().split([',', ' ']);
        let in_header = fields.find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        in_header.unwrap_or(in_query)
    }

    /// The parts of the scope, the access key first.
    fn scope(&self) -> Vec<String> {
        let mut parts: Vec<_> = self
            .field("Credential")
            .rsplitn(5, '/')
            .map(str::to_owned)
            .collect();
        parts.reverse();
        parts
    }

    fn key(&self) -> String {
        self.scope().first().cloned().unwrap_or_default()
    }

    fn signature(&self) -> String {
        self.field("Signature").to_owned()
    }

    /// Of the chunks of a body, and of its trailers.
    fn chunk_signatures(&self) -> impl Iterator<Item = &str> {
        let lines = self.body.lines();
        lines.filter_map(|line| Some(line.split_once("-signature")?.1.get(1..)?.trim()))
    }

    /// Whether a signature in a header is not written as the documentation has it.
    fn is_of_odd_form(&self) -> bool {
        let authorization = self.authorization();
        let fields = authorization
            .strip_prefix("AWS4-HMAC-SHA256 ")
            .unwrap_or_default();
        let fields: Vec<_> = fields
            .split(',')
            .map(|field| field.trim_start_matches(' '))
            .collect();
        let names = ["Credential=", "SignedHeaders=", "Signature="];
        let is_field = |pair: (&&str, &&str)| pair.0.starts_with(pair.1) && !pair.0.contains(' ');
        let is_plain = fields.len() == 3 && fields.iter().zip(&names).all(is_field);
        !authorization.is_empty() && !is_plain
    }

    fn signed_text(&self) -> &str {
        self.field("SignedHeaders")
    }

    fn signed(&self) -> Vec<String> {
        let names = self.signed_text().split(';');
        names.map(str::to_ascii_lowercase).collect()
    }

    fn has_unsigned(&self) -> bool {
        let signed = self.signed();
        let must = |name: &str| name == "host" || (name.starts_with("x-amz-") && name != PAYLOAD);
        let mut names = self
            .headers
            .iter()
            .map(|(name, _)| name)
            .filter(|name| must(name));
        !signed.contains(&"host".to_owned()) || names.any(|name| !signed.contains(name))
    }

    fn repeats_a_parameter(&self) -> bool {
        let mut names: Vec<_> = self.parameters.iter().map(|(name, _)| name).collect();
        names.sort();
        names.windows(2).any(|pair| pair[0] == pair[1])
    }
}
