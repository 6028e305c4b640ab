//! False responses: they violate HTTP or the store's protocol, or contradict an earlier response.
//!
//! A [`Lie`] falsifies one correct response. [`super::FaultPlan::lying`] applies several in rotation, [`super::Server::script`]
//! one to a chosen request, and [`super::FaultPlan::none`] ends them.

mod list;
mod object;
mod syntax;

use bytes::Bytes;

use super::wire::WireStep;
use super::{HttpRequest, HttpResponse, Protocol};

macro_rules! lies {
    ($($(#[$doc:meta])+ $lie:ident $name:literal,)+) => {
        /// One way to falsify the response to a GET or HEAD of an object, or to a list.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Lie {
            $($(#[$doc])+ $lie,)+
        }

        impl Lie {
            /// All lies, in the order of their declaration.
            pub const ALL: &'static [Self] = &[$(Self::$lie,)+];

            /// Returns the lie's name, for reports and settings.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$lie => $name,)+
                }
            }
        }
    };
}

lies! {
    /// Half of the body, and the connection closes.
    BodyShort "body-short",
    /// Half of the body, with the Content-Length of that half.
    LengthOfHalf "length-of-half",
    /// Bytes follow the body, and Content-Length counts them.
    BodyLong "body-long",
    /// Bytes follow the body, and Content-Length does not count them.
    BytesAfterBody "bytes-after-body",
    /// The body is compressed and has a Content-Encoding.
    Gzip "gzip",
    /// The body is compressed and has a Content-Encoding, in chunks without Content-Length.
    GzipChunked "gzip-chunked",
    /// The body is compressed and has no Content-Encoding.
    GzipUnnamed "gzip-unnamed",
    /// The body is compressed and has no Content-Encoding, in chunks without Content-Length.
    GzipChunkedUnnamed "gzip-chunked-unnamed",
    /// The body is correct and has a false Content-Encoding.
    EncodingNamed "encoding-named",
    /// The range begins one byte late.
    RangeStartsLate "range-starts-late",
    /// The range begins one byte early.
    RangeStartsEarly "range-starts-early",
    /// The range ends in its middle.
    RangeEndsEarly "range-ends-early",
    /// The range ends one byte late.
    RangeEndsLate "range-ends-late",
    /// The first bytes of the object, whatever range was requested.
    RangeOther "range-other",
    /// Content-Range names a greater length of the object.
    TotalGreater "total-greater",
    /// Content-Range names half the length of the object, and a range within it.
    TotalSmaller "total-smaller",
    /// Content-Range names no length of the object.
    TotalUnknown "total-unknown",
    /// 206 without Content-Range.
    RangeUnnamed "range-unnamed",
    /// Content-Range is not a range.
    RangeGarbage "range-garbage",
    /// Content-Range ends before it begins.
    RangeReversed "range-reversed",
    /// Content-Range ends at the greatest number of 64 bits.
    RangeHuge "range-huge",
    /// Two different Content-Range headers.
    RangeTwice "range-twice",
    /// The range as a part of multipart/byteranges.
    RangeMultipart "range-multipart",
    /// 200 and the whole object for a range.
    WholeForRange "whole-for-range",
    /// 206 and the first half of the object, without a requested range.
    RangeForWhole "range-for-whole",
    /// 304 to a request without a condition.
    NotModified "not-modified",
    /// 416 to a range within the object.
    RangeRefused "range-refused",
    /// 416 to a range within the object, with a length of zero in Content-Range.
    RangeRefusedEmpty "range-refused-empty",
    /// 204.
    NoContent "no-content",
    /// 203 and the body compressed.
    Transformed "transformed",
    /// 200 and an HTML page.
    HtmlPage "html-page",
    /// 200 and an error of S3.
    ErrorInOk "error-in-ok",
    /// Another ETag on each response.
    TagChanges "tag-changes",
    /// A weak ETag on each second response.
    TagWeakens "tag-weakens",
    /// No ETag on each second response.
    TagVanishes "tag-vanishes",
    /// An ETag that is not text.
    TagGarbage "tag-garbage",
    /// Another Last-Modified on each response.
    DateChanges "date-changes",
    /// A Last-Modified in a thousand years.
    DateInFuture "date-in-future",
    /// A Last-Modified that is not a date.
    DateGarbage "date-garbage",
    /// No Last-Modified.
    DateMissing "date-missing",
    /// Each second response is of another object of the same length, with its own ETag.
    TwoVersions "two-versions",
    /// HEAD names a length greater than GET.
    HeadLonger "head-longer",
    /// HEAD names half the length that GET does.
    HeadShorter "head-shorter",
    /// HEAD finds nothing where GET finds the object.
    HeadMissing "head-missing",
    /// A redirect to the same address.
    RedirectToSelf "redirect-to-self",
    /// A redirect to ever new addresses.
    RedirectEndless "redirect-endless",
    /// A redirect to another host.
    RedirectElsewhere "redirect-elsewhere",
    /// A redirect to a file.
    RedirectToFile "redirect-to-file",
    /// A redirect without Location.
    RedirectBare "redirect-bare",
    /// No response.
    StallBeforeHead "stall-before-head",
    /// Half of the head, and nothing more.
    StallInHead "stall-in-head",
    /// Half of the body, and nothing more.
    StallInBody "stall-in-body",
    /// The body in pieces of 8 KiB, a pause after each.
    Drip "drip",
    /// The connection closes without response.
    CloseBeforeHead "close-before-head",
    /// The connection is reset without response.
    ResetBeforeHead "reset-before-head",
    /// The connection is reset after half of the body.
    ResetInBody "reset-in-body",
    /// Bytes that are not HTTP.
    NotHttp "not-http",
    /// A body without head, as of HTTP/0.9.
    NoHead "no-head",
    /// Status 999.
    StatusUnknown "status-unknown",
    /// 101.
    SwitchProtocol "switch-protocol",
    /// 100, without end.
    ContinueFlood "continue-flood",
    /// A header of 1 MiB.
    HeaderHuge "header-huge",
    /// 100,000 headers.
    HeadersMany "headers-many",
    /// A head that never ends.
    HeadEndless "head-endless",
    /// A header without colon.
    HeaderBroken "header-broken",
    /// A header with a NUL.
    HeaderNul "header-nul",
    /// Chunks whose length is not a number.
    ChunkGarbage "chunk-garbage",
    /// A chunk whose length has more than 64 bits.
    ChunkOverflow "chunk-overflow",
    /// Chunks without the last one.
    ChunksUnended "chunks-unended",
    /// Content-Length in addition to chunks, and different from them.
    LengthBesideChunks "length-beside-chunks",
    /// Two different Content-Length headers.
    LengthTwice "length-twice",
    /// A Content-Length below zero.
    LengthNegative "length-negative",
    /// A Content-Length of more than 64 bits.
    LengthOverflow "length-overflow",
    /// A Content-Length of 8 EiB, and the connection closes after the body.
    LengthHuge "length-huge",
    /// HTTP/1.0 without Content-Length: half of the body, and the connection closes.
    CloseDelimited "close-delimited",
    /// 400.
    BadRequest "bad-request",
    /// 403.
    Forbidden "forbidden",
    /// 404.
    Missing "missing",
    /// 412 to a request whose condition holds, or that has none.
    ConditionFailed "condition-failed",
    /// 429.
    TooMany "too-many",
    /// 500, with a body that never ends.
    ErrorEndless "error-endless",
    /// 503.
    Unavailable "unavailable",
    /// Keys of a list in the opposite order.
    ListReversed "list-reversed",
    /// Each key of a list twice.
    ListTwice "list-twice",
    /// A key outside the prefix.
    ListOutside "list-outside",
    /// The first page of a list again and again.
    ListRepeats "list-repeats",
    /// Pages without keys, without end.
    ListEmptyPages "list-empty-pages",
    /// Keys of a list with wrong lengths.
    ListWrongLengths "list-wrong-lengths",
    /// A list whose lengths are below zero.
    ListNegativeLengths "list-negative-lengths",
    /// A list with keys that escape a folder or have control characters.
    ListBadKeys "list-bad-keys",
    /// A list with invalid dates.
    ListBadDates "list-bad-dates",
    /// XML that ends in its middle, with the Content-Length of that half.
    ListCut "list-cut",
    /// XML whose tags do not match.
    ListMalformed "list-malformed",
    /// Entities that expand to 3 GB.
    ListEntityBomb "list-entity-bomb",
    /// A page of a list that never ends.
    ListEndless "list-endless",
}

/// Result of a lie.
#[derive(Debug)]
pub(super) enum LieEffect {
    /// A changed response.
    Response(HttpResponse),
    /// Raw bytes and pauses in place of a response; the connection closes after them.
    Wire(Vec<WireStep>),
}

impl Lie {
    /// Returns the lie of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|lie| lie.name() == name)
    }

    /// Returns whether the lie changes lists only. All others change responses to GET and HEAD of objects; those of the
    /// connection and the syntax of HTTP also change lists.
    #[must_use]
    pub fn is_list_lie(self) -> bool {
        self.name().starts_with("list-")
    }

    /// Returns the contents that a client without earlier responses may accept in place of the true contents `honest`. `None`
    /// if every client must detect the lie.
    #[must_use]
    pub fn accepted_contents(self, honest: &Bytes) -> Option<Bytes> {
        match self {
            Self::TotalSmaller | Self::HeadShorter => Some(honest.slice(..honest.len() / 2)),
            Self::TwoVersions => Some(object::other_version(honest)),
            Self::HtmlPage => Some(Bytes::from_static(object::PAGE)),
            Self::ErrorInOk => Some(Bytes::from_static(object::ERROR)),
            Self::RangeRefusedEmpty => Some(Bytes::new()),
            // A client without earlier responses may take the compressed bytes for the stored ones.
            Self::Gzip | Self::GzipChunked | Self::GzipUnnamed | Self::GzipChunkedUnnamed => {
                Some(object::gzip(honest))
            }
            _ => None,
        }
    }

    /// Falsifies the correct response `response`; `number` is the number of earlier lies.
    pub(super) fn apply(
        self,
        protocol: &dyn Protocol,
        request: &HttpRequest,
        response: HttpResponse,
        number: u64,
    ) -> LieEffect {
        let is_list = request.query("list-type").is_some() || request.query("comp") == Some("list");
        if self.is_list_lie() {
            return match is_list && response.status.is_success() {
                true => list::apply(self, request, response, number),
                false => LieEffect::Response(response),
            };
        }
        if let Some(steps) = syntax::apply(self, request, &response) {
            return LieEffect::Wire(steps);
        }
        object::apply(self, protocol, request, response, number, is_list)
    }
}
