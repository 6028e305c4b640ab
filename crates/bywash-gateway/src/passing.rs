//! Digests of bytes that pass from one object to another, computed as they pass.

use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::Error as StoreError;
use parking_lot::Mutex;

use crate::digest::{Algorithm, Checksum, Hasher, from_hex, hex};

type Body = BoxStream<'static, Result<Bytes, StoreError>>;

/// Digests in progress, shared with the body. Their lock is never contended: one task polls the body, and reads them at its end.
#[derive(Clone, Default)]
pub(crate) struct PassingDigests(Arc<Mutex<Hashers>>);

#[derive(Default)]
struct Hashers {
    md5: Option<Hasher>,
    checksum: Option<(Algorithm, Hasher)>,
}

/// Digests of all bytes that passed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PassedDigests {
    /// In hexadecimal digits.
    pub(crate) md5: Option<String>,
    pub(crate) checksum: Option<Checksum>,
}

impl PassedDigests {
    /// The MD5 in base64.
    pub(crate) fn md5_hash(&self) -> Option<String> {
        let md5 = from_hex(self.md5.as_deref()?)?;
        Some(BASE64_STANDARD.encode(md5))
    }
}

impl PassingDigests {
    /// Computes the requested digests of a body.
    pub(crate) fn new(md5: bool, checksum: Option<Algorithm>) -> Self {
        Self(Arc::new(Mutex::new(Hashers {
            md5: md5.then(Hasher::md5),
            checksum: checksum.map(|algorithm| (algorithm, algorithm.hasher())),
        })))
    }

    /// Returns `body`, whose bytes are hashed as they are polled.
    pub(crate) fn of(&self, body: Body) -> Body {
        let hashers = Arc::clone(&self.0);
        if hashers.lock().is_empty() {
            return body;
        }
        body.inspect_ok(move |piece| hashers.lock().update(piece))
            .boxed()
    }

    /// The digests, at the end of the body.
    pub(crate) fn finish(self) -> PassedDigests {
        let hashers = std::mem::take(&mut *self.0.lock());
        PassedDigests {
            md5: hashers.md5.map(|md5| hex(&md5.finish())),
            checksum: hashers.checksum.map(|(algorithm, hasher)| Checksum {
                algorithm,
                value: BASE64_STANDARD.encode(hasher.finish()),
            }),
        }
    }
}

impl Hashers {
    fn is_empty(&self) -> bool {
        self.md5.is_none() && self.checksum.is_none()
    }

    fn update(&mut self, piece: &[u8]) {
        if let Some(md5) = &mut self.md5 {
            md5.update(piece);
        }
        if let Some((_, checksum)) = &mut self.checksum {
            checksum.update(piece);
        }
    }
}
