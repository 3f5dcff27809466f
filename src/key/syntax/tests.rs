use proptest::prelude::*;

use super::*;

fn parse(line: &str) -> Result<String, KeyError> {
    KeySyntax::new().parse_line(line.as_bytes()).map(|key| key.as_str().to_owned())
}

#[track_caller]
fn check(syntax: KeySyntax, line: &str, expected: Result<&str, KeyError>) {
    let parsed = syntax.parse_line(line.as_bytes());
    assert_eq!(parsed.as_ref().map(IdempotencyKey::as_str), expected.as_ref().map(|text| *text), "{line:?}");
}

#[test]
fn bare_and_quoted_are_the_same_key() {
    for line in ["abc", "\"abc\"", "  abc ", "\tabc \t", "  \"abc\"  ", "\"abc\";v=1", "\"abc\"; a; b=\"x\" "] {
        assert_eq!(parse(line).as_deref(), Ok("abc"), "{line:?}");
    }
}

#[test]
fn escapes_in_a_quoted_key_are_decoded() {
    assert_eq!(parse(r#""a\"b\\c, d; e""#).as_deref(), Ok(r#"a"b\c, d; e"#));
}

#[test]
fn each_fault_is_named() {
    for (line, error) in [
        ("", KeyError::Empty),
        ("\"\"", KeyError::Empty),
        ("   ", KeyError::Blank),
        (" \t ", KeyError::Blank),
        ("\"   \"", KeyError::Blank),
        ("a, a", KeyError::List),
        ("a,a", KeyError::List),
        (",", KeyError::List),
        ("\"a\", \"a\"", KeyError::List),
        ("\"a\" , \"b\"", KeyError::List),
        ("a b", KeyError::NeedsQuotes),
        ("a\"b", KeyError::NeedsQuotes),
        ("a\\b", KeyError::NeedsQuotes),
        ("a;v=1", KeyError::NeedsQuotes),
        ("a\tb", KeyError::ControlCharacter),
        ("a\u{7f}b", KeyError::ControlCharacter),
        ("\"a\tb\"", KeyError::ControlCharacter),
        ("\t\"a\"", KeyError::ControlCharacter),
        ("é", KeyError::NotAscii),
        ("\"é\"", KeyError::NotAscii),
        ("\"abc", KeyError::Unterminated),
        ("\"", KeyError::Unterminated),
        ("\"abc\\\"", KeyError::Unterminated),
        ("\"abc\\", KeyError::Unterminated),
        ("\"a\\bc\"", KeyError::BadEscape),
        ("\"a\"b", KeyError::TrailingText),
        ("\"a\"\"b\"", KeyError::TrailingText),
        ("\"a\" ;v=1", KeyError::TrailingText),
        ("\"a\"\t", KeyError::TrailingText),
        ("\"a\";", KeyError::BadParameters),
        ("\"a\";V=1", KeyError::BadParameters),
        ("\"a\";v=", KeyError::BadParameters),
    ] {
        assert_eq!(parse(line), Err(error), "{line:?}");
    }
}

#[test]
fn the_length_is_counted_after_decoding() {
    let longest = "a".repeat(255);
    check(KeySyntax::new(), &longest, Ok(&longest));
    check(KeySyntax::new(), &format!("\"{longest}\";v=1"), Ok(&longest));
    check(KeySyntax::new(), &format!("{longest}a"), Err(KeyError::TooLong { max: 255 }));
    check(KeySyntax::new().max_length(2), r#""\\\\""#, Ok(r"\\"));
    check(KeySyntax::new().max_length(2), r#""\\\\\\""#, Err(KeyError::TooLong { max: 2 }));
    let longest = "a".repeat(1024);
    check(KeySyntax::new().max_length(1024), &longest, Ok(&longest));
}

#[test]
#[should_panic(expected = "must be 1 to 1024, not 1025")]
fn a_maximum_above_1024_is_refused_when_built() {
    let _ = KeySyntax::new().max_length(1025);
}

#[test]
#[should_panic(expected = "must be 1 to 1024, not 0")]
fn a_maximum_of_0_is_refused_when_built() {
    let _ = KeySyntax::new().max_length(0);
}

#[test]
fn quoted_only_refuses_bare_keys() {
    let syntax = KeySyntax::new().quoted_only();
    check(syntax, "\"abc\"", Ok("abc"));
    check(syntax, "abc", Err(KeyError::NotQuoted));
    check(syntax, "", Err(KeyError::Empty));
    check(syntax, "  ", Err(KeyError::Blank));
}

#[test]
fn uuid_only_takes_the_textual_form_of_a_uuid_in_any_case() {
    let syntax = KeySyntax::new().uuid_only();
    let upper = "8E03978E-40D5-43DD-BC93-6894A57F9324";
    let lower = &upper.to_ascii_lowercase();
    check(syntax, upper, Ok(upper));
    check(syntax, &format!("\"{lower}\""), Ok(lower));
    for wrong in [
        "8e03978e40d543ddbc936894a57f9324",
        "{8e03978e-40d5-43dd-bc93-6894a57f9324}",
        "8e03978e-40d5-43dd-bc93-6894a57f932",
        "8e03978e-40d5-43dd-bc93-6894a57f9324a",
        "8e03978e-40d5-43dd-bc93-6894a57f932g",
        "8e03978e4-0d5-43dd-bc93-6894a57f9324",
    ] {
        check(syntax, wrong, Err(KeyError::NotUuid));
    }
}

#[test]
fn exactly_one_line_is_a_key() {
    let line = HeaderValue::from_static("abc");
    assert_eq!(KeySyntax::new().parse([&line]).unwrap().as_str(), "abc");
    assert_eq!(KeySyntax::new().parse([&line, &line]), Err(KeyError::Repeated));
    assert_eq!(KeySyntax::new().parse([]), Err(KeyError::Empty));
}

#[test]
fn no_message_repeats_the_key() {
    for line in ["sesame, sesame", "\"sesame", "sesame sesame", "\"sesame\"sesame", "\"sesame\";Sesame", "sesameé"] {
        assert!(!parse(line).unwrap_err().to_string().contains("sesame"), "{line:?}");
    }
}

proptest! {
    #[test]
    fn quoting_any_printable_text_is_undone(text in "[ -~]{1,255}") {
        prop_assume!(!text.trim_matches(' ').is_empty());
        let line = format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
        prop_assert_eq!(parse(&line), Ok(text));
    }

    #[test]
    fn bare_and_quoted_forms_agree(text in "[!#-+\\--:<-\\[\\]-~]{1,300}") {
        prop_assert_eq!(parse(&text), parse(&format!("\"{text}\"")));
    }

    #[test]
    fn no_bytes_make_the_parser_panic(line in prop::collection::vec(any::<u8>(), 0..80)) {
        let _ = KeySyntax::new().parse_line(&line);
    }

    #[test]
    fn no_line_that_looks_like_an_item_makes_the_parser_panic(
        line in "[ \t]{0,2}\"[a\\\\\"é]{0,4}\"(;[ a*]{0,3}(=[-0-9.a:=?@%\"\\\\cf3ü]{0,8})?){0,3}[ ,]{0,2}"
    ) {
        if let Ok(key) = KeySyntax::new().parse_line(line.as_bytes()) {
            prop_assert!(IdempotencyKey::new(key.as_str()).is_ok());
        }
    }
}
