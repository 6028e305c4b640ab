//! Lies of an origin: responses that break HTTP, the store's protocol, or a promise that an earlier response made.
//!
//! A [`Lie`] changes one honest response. [`super::FaultPlan::lying`] tells several in rotation, [`super::Server::script`] one
//! on cue, and [`super::FaultPlan::calm`] makes the server honest again.

mod list;
mod object;
mod syntax;

use bytes::Bytes;

use super::wire::Step;
use super::{Asked, Protocol, Reply};

macro_rules! lies {
    ($($(#[$doc:meta])+ $lie:ident $name:literal,)+) => {
        /// One way to lie in response to a GET or HEAD of an object, or to a list.
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
    /// Half of the body, with its own Content-Length.
    LengthOfHalf "length-of-half",
    /// Bytes follow the body, and Content-Length counts them.
    BodyLong "body-long",
    /// Bytes follow the body, and Content-Length does not count them.
    BytesAfterBody "bytes-after-body",
    /// The body is packed and says so.
    Gzip "gzip",
    /// The body is packed and says so, in chunks without Content-Length.
    GzipChunked "gzip-chunked",
    /// The body is packed and does not say so.
    GzipUnnamed "gzip-unnamed",
    /// The body is packed and does not say so, in chunks without Content-Length.
    GzipChunkedUnnamed "gzip-chunked-unnamed",
    /// The body is as it should be, and has the name of an encoding.
    EncodingNamed "encoding-named",
    /// The range begins one byte late.
    RangeStartsLate "range-starts-late",
    /// The range begins one byte early.
    RangeStartsEarly "range-starts-early",
    /// The range ends in its middle.
    RangeEndsEarly "range-ends-early",
    /// The range ends one byte late.
    RangeEndsLate "range-ends-late",
    /// The first bytes of the object, whatever range was asked for.
    RangeOther "range-other",
    /// Content-Range names a greater length of the object.
    TotalGreater "total-greater",
    /// Content-Range names half the length of the object, and a range within it.
    TotalSmaller "total-smaller",
    /// Content-Range names no length of the object.
    TotalUnknown "total-unknown",
    /// 206 without Content-Range.
    RangeUnnamed "range-unnamed",
    /// Content-Range is no range.
    RangeGarbage "range-garbage",
    /// Content-Range ends before it begins.
    RangeReversed "range-reversed",
    /// Content-Range ends at the greatest number of 64 bits.
    RangeHuge "range-huge",
    /// Two different Content-Range.
    RangeTwice "range-twice",
    /// The range as a part of multipart/byteranges.
    RangeMultipart "range-multipart",
    /// 200 and the whole object for a range.
    WholeForRange "whole-for-range",
    /// 206 and the first half of an object that was asked for whole.
    RangeForWhole "range-for-whole",
    /// 304 to a request without a condition.
    NotModified "not-modified",
    /// 416 to a range within the object.
    RangeRefused "range-refused",
    /// 416 to a range within the object, which is said to be empty.
    RangeRefusedEmpty "range-refused-empty",
    /// 204.
    NoContent "no-content",
    /// 203 and the body packed.
    Transformed "transformed",
    /// 200 and a page for people.
    HtmlPage "html-page",
    /// 200 and an error of S3.
    ErrorInOk "error-in-ok",
    /// Another ETag on each response.
    TagChanges "tag-changes",
    /// A weak ETag on each second response.
    TagWeakens "tag-weakens",
    /// No ETag on each second response.
    TagVanishes "tag-vanishes",
    /// An ETag that is no text.
    TagGarbage "tag-garbage",
    /// Another Last-Modified on each response.
    DateChanges "date-changes",
    /// A Last-Modified in a thousand years.
    DateInFuture "date-in-future",
    /// A Last-Modified that is no date.
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
    /// A redirect without address.
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
    /// 100, for ever.
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
    /// Chunks whose length is no number.
    ChunkGarbage "chunk-garbage",
    /// A chunk whose length has more than 64 bits.
    ChunkOverflow "chunk-overflow",
    /// Chunks without the last one.
    ChunksUnended "chunks-unended",
    /// Content-Length beside chunks, and different from them.
    LengthBesideChunks "length-beside-chunks",
    /// Two different Content-Length.
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
    /// Pages without keys, for ever.
    ListEmptyPages "list-empty-pages",
    /// Keys of a list with wrong lengths.
    ListWrongLengths "list-wrong-lengths",
    /// A list whose lengths are below zero.
    ListNegativeLengths "list-negative-lengths",
    /// A list with keys that lead out of a folder, or have control characters.
    ListBadKeys "list-bad-keys",
    /// A list with dates that are none.
    ListBadDates "list-bad-dates",
    /// XML that ends in its middle, with its own Content-Length.
    ListCut "list-cut",
    /// XML that does not match its tags.
    ListMalformed "list-malformed",
    /// Entities that expand to 3 GB.
    ListEntityBomb "list-entity-bomb",
    /// A page of a list that never ends.
    ListEndless "list-endless",
}

/// What a lie makes of a response.
#[derive(Debug)]
pub(super) enum Told {
    /// Another response.
    Reply(Reply),
    /// Bytes and pauses in place of a response; the connection closes after them.
    Wire(Vec<Step>),
}

impl Lie {
    /// Returns the lie of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|lie| lie.name() == name)
    }

    /// Returns whether the lie is about lists only. All others change responses to GET and HEAD of objects, and those about
    /// the connection and the syntax of HTTP also lists.
    #[must_use]
    pub fn is_of_lists(self) -> bool {
        self.name().starts_with("list-")
    }

    /// Returns the object that a client which knows nothing of it must take the response to be of, where the honest object is
    /// `honest`. `None` where no client may believe the lie.
    #[must_use]
    pub fn believed(self, honest: &Bytes) -> Option<Bytes> {
        match self {
            Self::TotalSmaller | Self::HeadShorter => Some(honest.slice(..honest.len() / 2)),
            Self::TwoVersions => Some(object::other_version(honest)),
            Self::HtmlPage => Some(Bytes::from_static(object::PAGE)),
            Self::ErrorInOk => Some(Bytes::from_static(object::ERROR)),
            Self::RangeRefusedEmpty => Some(Bytes::new()),
            // Whoever never heard of the object may take what is packed for what is stored.
            Self::Gzip | Self::GzipChunked | Self::GzipUnnamed | Self::GzipChunkedUnnamed => {
                Some(object::packed(honest))
            }
            _ => None,
        }
    }

    /// Returns the changed response; `reply` is the honest one, and `nth` counts lies.
    pub(super) fn tell(
        self,
        protocol: &dyn Protocol,
        asked: &Asked,
        reply: Reply,
        nth: u64,
    ) -> Told {
        let is_list = asked.query("list-type").is_some() || asked.query("comp") == Some("list");
        if self.is_of_lists() {
            return match is_list && reply.status.is_success() {
                true => list::tell(self, asked, reply, nth),
                false => Told::Reply(reply),
            };
        }
        if let Some(steps) = syntax::tell(self, asked, &reply) {
            return Told::Wire(steps);
        }
        object::tell(self, protocol, asked, reply, nth, is_list)
    }
}
