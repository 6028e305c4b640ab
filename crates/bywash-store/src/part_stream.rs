//! The body of a part on its way to a store: of the announced length, or never whole.

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;

use super::interface::{PartBody, body_length_error};

/// Returns `body`, failing unless it is exactly `length` bytes long; it then ends before its last piece.
pub(super) fn part_stream(path: &Path, length: u64, body: PartBody) -> PartBody {
    withhold_last(exact_length(path, length, body))
}

/// A stream that withholds its last piece until it is known that no error follows.
///
/// With a fixed Content-Length, a body that fails at its end then never arrives whole, so the server cannot store it.
fn withhold_last(body: PartBody) -> PartBody {
    let state = (body, None::<Bytes>, false);
    futures::stream::try_unfold(state, |(mut body, mut held, done)| async move {
        if done {
            return Ok(None);
        }
        loop {
            match body.try_next().await? {
                Some(piece) => {
                    if let Some(ready) = held.replace(piece) {
                        return Ok(Some((ready, (body, held, false))));
                    }
                }
                None => return Ok(held.map(|last| (last, (body, None, true)))),
            }
        }
    })
    .boxed()
}

/// Fails a body that is not exactly `length` bytes long.
fn exact_length(path: &Path, length: u64, body: PartBody) -> PartBody {
    let path = path.clone();
    futures::stream::try_unfold((body, 0_u64), move |(mut body, got)| {
        let path = path.clone();
        async move {
            match body.try_next().await? {
                Some(piece) if got + piece.len() as u64 > length => {
                    Err(body_length_error(&path, length, got + piece.len() as u64))
                }
                Some(piece) => {
                    let got = got + piece.len() as u64;
                    Ok(Some((piece, (body, got))))
                }
                None if got == length => Ok(None),
                None => Err(body_length_error(&path, length, got)),
            }
        }
    })
    .boxed()
}
