use proptest::prelude::*;

use super::*;

fn read(line: &str) -> (String, Vec<(String, f64)>, usize, Option<i64>) {
    let line = parse(line).unwrap();
    let fields = line
        .fields
        .into_iter()
        .map(|(name, value)| (name.into_owned(), value))
        .collect();
    (line.source, fields, line.strings, line.timestamp)
}

fn reason(line: &str) -> String {
    parse(line).unwrap_err().reason.into_owned()
}

#[test]
fn measurement_and_tags_are_the_source_and_each_field_a_metric() {
    let (source, fields, strings, timestamp) = read(
        r#"weather,place=garden,by=ann temperature=21.5,wet=t,count=3i,note="a \"b\", c=1",big=7u 1700000000"#,
    );
    assert_eq!(source, "weather,by=ann,place=garden");
    let expected = [
        ("temperature", 21.5),
        ("wet", 1.0),
        ("count", 3.0),
        ("big", 7.0),
    ];
    assert_eq!(
        fields,
        expected.map(|(name, value)| (name.to_owned(), value))
    );
    assert_eq!((strings, timestamp), (1, Some(1_700_000_000)));
}

#[test]
fn names_are_escaped_as_in_the_line() {
    let (source, fields, ..) = read(r"wea\ ther\,x=y,pl\=ace=the\ gar\,den,w=C:\dir fi\ eld\=a=1");
    assert_eq!(source, r"wea\ ther\,x=y,pl\=ace=the\ gar\,den,w=C:\dir");
    assert_eq!(fields, [("fi eld=a".to_owned(), 1.0)]);
    let (source, ..) = read("größe,ort=köln wert=-1.5e-3");
    assert_eq!(source, "größe,ort=köln");
}

#[test]
fn line_whose_fields_are_all_strings_is_read_without_values() {
    for (line, strings, timestamp) in [
        ("system,host=a uptime_format=\"1 day,  2:03\" 7", 1, Some(7)),
        ("m a=\"1\",b=\"\",c=\"x, y=1 2\"", 3, None),
    ] {
        let (_, fields, found, at) = read(line);
        assert_eq!((fields.len(), found, at), (0, strings, timestamp), "{line}");
    }
}

#[test]
fn values_are_numbers_of_every_spelling() {
    for (text, value) in [
        ("1", 1.0),
        ("-1", -1.0),
        ("+1", 1.0),
        ("1.", 1.0),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("1.5E-3", 0.0015),
        ("-9223372036854775808i", i64::MIN as f64),
        ("18446744073709551615u", u64::MAX as f64),
        ("True", 1.0),
        ("F", 0.0),
    ] {
        assert_eq!(read(&format!("m f={text}")).1[0].1, value, "{text}");
    }
    assert!(read("m f=-0").1[0].1.is_sign_negative());
    for text in [
        "",
        "nan",
        "NaN",
        "inf",
        "-inf",
        "1e999",
        "1i2",
        "i",
        "9223372036854775808i",
        "-1u",
        "1.5i",
        "tRUE",
        "x",
        "0x1",
        "1 2 3",
    ] {
        assert!(parse(&format!("m f={text}")).is_err(), "{text:?}");
    }
}

#[test]
fn invalid_lines_are_refused_with_their_reason() {
    for (line, expected) in [
        (",a=b f=1", "the measurement is missing"),
        (" f=1", "the measurement is missing"),
        ("m", "there is no field"),
        ("m,a=b", "there is no field"),
        ("m f", "has no value"),
        ("m =1", "a field has no name"),
        ("m f=1,", "a field has no name"),
        ("m,a f=1", "the tag \"a\" has no value"),
        ("m,a= f=1", "empty key or value"),
        ("m,=b f=1", "empty key or value"),
        ("m,a=b=c f=1", "write \\= for it"),
        ("m,a=1,a=2 f=1", "the tag \"a\" is given twice"),
        ("m f=1 12x", "is not a whole number"),
        ("m f=1 99999999999999999999", "is not a whole number"),
        ("m f=\"open", "has no end"),
        ("m f=\"a\"b", "is followed by"),
        ("bywash,bucket=a f=1", "server's own history"),
    ] {
        assert!(reason(line).contains(expected), "{line}: {}", reason(line));
    }
}

#[test]
fn names_tags_and_fields_are_limited() {
    let tags = |count: usize| {
        (0..count)
            .map(|tag| format!(",t{tag}=v"))
            .collect::<String>()
    };
    assert!(parse(&format!("m{} f=1", tags(MAX_TAGS))).is_ok());
    assert!(reason(&format!("m{} f=1", tags(MAX_TAGS + 1))).contains("more than 64 tags"));
    let fields = |count: usize| {
        (0..count)
            .map(|field| format!("f{field}=1"))
            .collect::<Vec<_>>()
            .join(",")
    };
    assert!(parse(&format!("m {}", fields(MAX_FIELDS))).is_ok());
    assert!(reason(&format!("m {}", fields(MAX_FIELDS + 1))).contains("more than 1024 fields"));
    assert!(parse(&format!("{} f=1", "m".repeat(MAX_SOURCE_BYTES))).is_ok());
    assert!(reason(&format!("{} f=1", "m".repeat(MAX_SOURCE_BYTES + 1))).contains("at most 4096"));
    assert!(parse(&format!("m {}=1", "f".repeat(MAX_FIELD_BYTES))).is_ok());
    assert!(reason(&format!("m {}=1", "f".repeat(MAX_FIELD_BYTES + 1))).contains("at most 1024"));
}

/// Generates names that are not empty and contain no line end.
fn name() -> impl Strategy<Value = String> {
    // A backslash at the end would escape the next character: the protocol cannot represent it.
    "[a-z ,=\"äß\\\\]{1,12}".prop_filter("no spelling", |name| !name.ends_with('\\'))
}

fn escaped(text: &str, ends: &[u8]) -> String {
    let mut name = String::new();
    escape_into(&mut name, text, ends);
    name
}

proptest! {
    #[test]
    fn written_form_is_read_back_unchanged(
        measurement in name().prop_filter("a comment", |name| !name.starts_with(['#', ' '])),
        tags in prop::collection::btree_map(name(), name(), 0..4),
        fields in prop::collection::vec((name(), any::<f64>().prop_filter("finite", |value| value.is_finite())), 1..4),
        timestamp in any::<Option<i64>>(),
    ) {
        let mut line = escaped(&measurement, b", ");
        for (key, value) in &tags {
            line += &format!(",{}={}", escaped(key, NAME_ENDS), escaped(value, NAME_ENDS));
        }
        let source = line.clone();
        let written: Vec<_> = fields.iter().map(|(name, value)| format!("{}={value:?}", escaped(name, NAME_ENDS))).collect();
        line += &format!(" {}", written.join(","));
        if let Some(timestamp) = timestamp {
            line += &format!(" {timestamp}");
        }
        let found = parse(&line);
        prop_assert!(found.is_ok(), "{line:?}: {found:?}");
        let found = found.unwrap();
        prop_assert_eq!(&found.source, &source);
        prop_assert_eq!(found.timestamp, timestamp);
        let bits = |fields: &[(Cow<'_, str>, f64)]| -> Vec<_> {
            fields.iter().map(|(name, value)| (name.to_string(), value.to_bits())).collect()
        };
        let expected: Vec<_> = fields.iter().map(|(name, value)| (name.clone(), value.to_bits())).collect();
        prop_assert_eq!(bits(&found.fields), expected);
    }

    /// Any text is parsed or refused; a parsed line is within the limits.
    #[test]
    fn noise_is_read_or_refused(line in "[a-c,= \"\\\\0-9.eiut\u{e4}-]{0,64}") {
        if let Ok(found) = parse(&line) {
            // A line may have strings alone, which are left out.
            prop_assert!(found.fields.len() + found.strings > 0);
            prop_assert!(found.fields.iter().all(|(name, value)| !name.is_empty() && value.is_finite()));
            // The name of a source parses to itself.
            let again = format!("{} f=1", found.source);
            prop_assert_eq!(parse(&again).unwrap().source, found.source);
        }
    }
}
