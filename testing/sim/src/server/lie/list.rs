//! False lists of objects, in the XML of S3.

use super::super::wire::{WireStep, head};
use super::super::{HttpRequest, HttpResponse};
use super::{Lie, LieEffect};

/// Formats one object of a list.
fn entry(key: &str, size: &str, date: &str) -> String {
    format!(
        "<Contents><Key>{key}</Key><LastModified>{date}</LastModified><ETag>\"e\"</ETag><Size>{size}</Size></Contents>"
    )
}

const DATE: &str = "2024-01-01T00:00:00.000Z";
const END: &str = "</ListBucketResult>";

pub(super) fn apply(
    lie: Lie,
    request: &HttpRequest,
    response: HttpResponse,
    number: u64,
) -> LieEffect {
    let text = String::from_utf8_lossy(&response.body).into_owned();
    let Some(start) = text.find("<Contents>") else {
        return LieEffect::Response(response);
    };
    let end = text
        .rfind("</Contents>")
        .map_or(start, |at| at + "</Contents>".len());
    let (before, entries, after) = (&text[..start], &text[start..end], &text[end..]);
    let entries: Vec<_> = entries.split_inclusive("</Contents>").collect();
    let with = |entries: &[String]| format!("{before}{}{after}", entries.concat());
    let same: Vec<_> = entries.iter().map(|&entry| entry.to_owned()).collect();
    let added = |more: &[String]| with(&[&same[..], more].concat());
    let token =
        |token: &str| format!("<NextContinuationToken>{token}</NextContinuationToken>{END}");
    let body = match lie {
        Lie::ListReversed => with(&same.iter().rev().cloned().collect::<Vec<_>>()),
        Lie::ListTwice => with(
            &same
                .iter()
                .flat_map(|one| [one.clone(), one.clone()])
                .collect::<Vec<_>>(),
        ),
        Lie::ListOutside => {
            let prefix = request.query("prefix").unwrap_or_default();
            added(&[entry(&format!("~outside/of/{prefix}"), "1", DATE)])
        }
        Lie::ListRepeats => text.replace(END, &token("again")),
        Lie::ListEmptyPages => format!("{before}{}", token(&format!("more-{number}"))),
        Lie::ListWrongLengths => text.replace("<Size>", "<Size>9"),
        Lie::ListNegativeLengths => text.replace("<Size>", "<Size>-"),
        Lie::ListBadKeys => {
            let keys = ["../../etc/passwd", "a//b", "a/./b", "&#10;\u{1b}[2J", ""];
            added(&keys.map(|key| entry(key, "1", DATE)))
        }
        Lie::ListBadDates => text.replace("<LastModified>", "<LastModified>not "),
        Lie::ListCut => text[..end].to_owned(),
        Lie::ListMalformed => text.replace("</Key>", "</Kye>"),
        Lie::ListEntityBomb => bomb(&text),
        Lie::ListEndless => {
            let mut steps = vec![
                WireStep::text(head(&response, Some("9223372036854775807"))),
                WireStep::text(before),
            ];
            let many = entry("key", "1", DATE).repeat(1000);
            steps.push(WireStep::Flood(many.into()));
            return LieEffect::Wire(steps);
        }
        _ => return LieEffect::Response(response),
    };
    LieEffect::Response(response.body(body))
}

/// Returns the list with a key of nested entities, each ten times the one before.
fn bomb(text: &str) -> String {
    let mut entities = String::from("<!DOCTYPE b [<!ENTITY e0 \"lol\">");
    for level in 1..10 {
        let ten = format!("&e{};", level - 1).repeat(10);
        entities.push_str(&format!("<!ENTITY e{level} \"{ten}\">"));
    }
    entities.push_str("]>");
    format!("{entities}{}", text.replace("<Key>", "<Key>&e9;"))
}
