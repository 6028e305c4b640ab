//! Destination of a copy: a place as users write it, or an address that someone else has signed for
//! writing one object.

use std::path::Path as FsPath;
use std::sync::Arc;

use bywash::origin::signed::{PartUrls, SignedTarget, SignedUrl};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::Transfer;
use crate::failure::Failure;
use crate::url::Url;

/// Sources and destination of the arguments.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) sources: Vec<Url>,
    /// Without secrets.
    pub(super) destination: Url,
    pub(super) signed: Option<SignedTarget>,
}

/// Parses a header as `NAME:VALUE`.
pub(super) fn parse_header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let wrong = || "write it as NAME:VALUE, for example content-type:text/plain".to_owned();
    let (name, value) = text.split_once(':').ok_or_else(wrong)?;
    let name = name.trim().parse().map_err(|_| wrong())?;
    let value = HeaderValue::from_str(value.trim()).map_err(|_| wrong())?;
    Ok((name, value))
}

impl Ends {
    /// Returns where the arguments lead. Reads the file of `--parts`, and sends no request.
    pub(super) fn of(args: &Transfer) -> Result<Self, Failure> {
        let ends = match &args.parts {
            Some(file) => Self::in_parts(args, file)?,
            None => Self::plain_or_signed(args)?,
        };
        if ends.signed.is_none() && !args.headers.is_empty() {
            return Err(Failure::usage(
                "--header is of a destination that was signed, as by bywash presign --method PUT",
            ));
        }
        if ends.signed.is_some() && (args.recursive || ends.sources.len() != 1) {
            return Err(Failure::usage(format!(
                "{} was signed for one object; name one source",
                ends.destination
            )));
        }
        Ok(ends)
    }

    fn plain_or_signed(args: &Transfer) -> Result<Self, Failure> {
        let signed = url::Url::parse(&args.destination)
            .ok()
            .and_then(SignedUrl::new)
            .map(|url| {
                let headers: HeaderMap = args.headers.iter().cloned().collect();
                SignedTarget::Url(url.with_headers(headers))
            });
        let destination = match &signed {
            Some(signed) => address_of(signed)?,
            None => Url::destination(&args.destination).map_err(Failure::usage)?,
        };
        Ok(Self {
            sources: args.sources.clone(),
            destination,
            signed,
        })
    }

    /// With `--parts` the one name is the source.
    fn in_parts(args: &Transfer, file: &FsPath) -> Result<Self, Failure> {
        let name = file.display();
        let text = std::fs::read_to_string(file)
            .map_err(|error| Failure::io(format!("cannot read {name}"), &error))?;
        let urls = PartUrls::from_json(&text)
            .map_err(|reason| Failure::usage(format!("{name}: the signed addresses: {reason}")))?;
        let signed = SignedTarget::Parts(Arc::new(urls));
        Ok(Self {
            sources: vec![args.destination.parse().map_err(Failure::usage)?],
            destination: address_of(&signed)?,
            signed: Some(signed),
        })
    }
}

/// Returns the address that messages show.
fn address_of(signed: &SignedTarget) -> Result<Url, Failure> {
    let text = signed.to_string();
    let parsed = text.parse();
    parsed.map_err(|error| Failure::usage(format!("the signed destination: {error}")))
}
