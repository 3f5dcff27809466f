use super::*;

fn parameters(text: &str) -> Result<&[u8], KeyError> {
    let mut cursor = Cursor::new(text.as_bytes());
    cursor.parameters().map(|()| cursor.rest())
}

#[test]
fn parameters_of_every_bare_item_type_are_read_to_their_end() {
    for text in [
        "",
        ";a",
        ";a;b;a",
        ";  a",
        ";*",
        ";*x9_-.*=1",
        ";a=0",
        ";a=-999999999999999",
        ";a=007",
        ";a=1.5",
        ";a=-123456789012.123",
        ";a=\"\"",
        ";a=\"x;\\\"\\\\ y\"",
        ";a=tok/en:~",
        ";a=*",
        ";a=::",
        ";a=:aGVsbG8=:",
        ";a=:aGVsbG8:",
        ";a=:aGk=:;b",
        ";a=:aA==:",
        ";a=?0",
        ";a=?1;b=?0",
        ";a=@0",
        ";a=@-62135596800",
        ";a=%\"\"",
        ";a=%\"f%c3%bc\"",
    ] {
        assert_eq!(parameters(text), Ok(&b""[..]), "{text}");
    }
}

#[test]
fn malformed_parameters_are_refused() {
    for text in [
        ";",
        ";;a",
        "; ",
        ";A",
        ";1",
        ";-a",
        ";\ta",
        ";a=",
        ";a= 1",
        ";a=-",
        ";a=1.",
        ";a=1.1234",
        ";a=1234567890123.1",
        ";a=1234567890123456",
        ";a=.5",
        ";a=\"x",
        ";a=\"\\x\"",
        ";a=\"\u{7f}\"",
        ";a=(1)",
        ";a=:a",
        ";a=:a:",
        ";a=:aGVsbG8==:",
        ";a=:=aGVsbG8=:",
        ";a=:aG Vs:",
        ";a=:_-Ah:",
        ";a=?",
        ";a=?2",
        ";a=@",
        ";a=@1.5",
        ";a=%",
        ";a=%x",
        ";a=%\"x",
        ";a=%\"%C3%BC\"",
        ";a=%\"%c3\"",
        ";a=%\"%f\"",
        ";a=%\"ü\"",
    ] {
        assert_eq!(parameters(text), Err(KeyError::BadParameters), "{text}");
    }
}

#[test]
fn parameters_end_where_no_semicolon_follows() {
    for (text, rest) in [(";a b", " b"), (";a ;b", " ;b"), (";a=?10", "0"), (";a=1.5.5", ".5"), (";a=b,c", ",c")] {
        assert_eq!(parameters(text), Ok(rest.as_bytes()), "{text}");
    }
}
