//! A multipart body, taken apart at its boundary (RFC 2046, section 5.1.1).

/// A multipart body without its boundary.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Split<'a> {
    /// What stands before the line end of the first delimiter, if there is one.
    pub(super) preamble: Option<&'a [u8]>,
    /// Headers and content of each part, without the line end that belongs to the next delimiter; one at least.
    pub(super) parts: Vec<&'a [u8]>,
    /// What stands behind the line end after the last delimiter, if there is one.
    pub(super) epilogue: Option<&'a [u8]>,
}

impl<'a> Split<'a> {
    /// Takes a body apart; `None` if it is malformed or can be read in two ways.
    ///
    /// Spaces and tabs behind a delimiter are padding that belongs to the transport, and are left out.
    pub(super) fn new(body: &'a [u8], boundary: &str) -> Option<Self> {
        let delimiter = ["--", boundary].concat().into_bytes();
        let (before, mut rest) = split_at(body, &delimiter)?;
        let preamble = if before.is_empty() { None } else { Some(before.strip_suffix(b"\r\n")?) };
        let mut parts = Vec::new();
        while !rest.starts_with(b"--") {
            // Every other place with the boundary in it ends here: parsers do not agree on what it means.
            let part = trim_padding(rest).strip_prefix(b"\r\n")?;
            let (part, behind) = split_at(part, &delimiter)?;
            parts.push(part.strip_suffix(b"\r\n")?);
            rest = behind;
        }
        let epilogue = match trim_padding(&rest[2..]) {
            [] => None,
            more => Some(more.strip_prefix(b"\r\n")?),
        };
        let is_clean = epilogue.is_none_or(|epilogue| split_at(epilogue, &delimiter).is_none());
        (is_clean && !parts.is_empty()).then_some(Self { preamble, parts, epilogue })
    }
}

/// Returns what is before and what is behind the first occurrence of the delimiter.
fn split_at<'a>(text: &'a [u8], delimiter: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let at = text.windows(delimiter.len()).position(|window| window[0] == b'-' && window == delimiter)?;
    Some((&text[..at], &text[at + delimiter.len()..]))
}

fn trim_padding(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|byte| !matches!(byte, b' ' | b'\t')).unwrap_or(text.len());
    &text[end..]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn split(body: &str) -> Option<(Option<&str>, Vec<&str>, Option<&str>)> {
        let text = |bytes| std::str::from_utf8(bytes).unwrap();
        let split = Split::new(body.as_bytes(), "B")?;
        Some((split.preamble.map(text), split.parts.into_iter().map(text).collect(), split.epilogue.map(text)))
    }

    #[test]
    fn parts_are_what_stands_between_the_delimiters() {
        for (body, expected) in [
            ("--B\r\n\r\none\r\n--B--", (None, vec!["\r\none"], None)),
            (
                "--B\r\nA: b\r\n\r\none\r\n--B\r\n\r\n\r\n\r\n--B--\r\n",
                (None, vec!["A: b\r\n\r\none", "\r\n\r\n"], Some("")),
            ),
            ("\r\n--B\r\n\r\n--B--", (Some(""), vec![""], None)),
            (
                "pre\r\namble\r\n--B\r\nx\r\n--B--\r\nepi\r\nlogue\r\n",
                (Some("pre\r\namble"), vec!["x"], Some("epi\r\nlogue\r\n")),
            ),
        ] {
            assert_eq!(split(body), Some(expected), "{body:?}");
        }
    }

    #[test]
    fn padding_behind_a_delimiter_is_no_part_of_anything() {
        assert_eq!(split("--B \t \r\nx\r\n--B\t\r\ny\r\n--B-- \r\n"), split("--B\r\nx\r\n--B\r\ny\r\n--B--\r\n"));
        assert_eq!(split("--B\r\nx\r\n--B--\t"), split("--B\r\nx\r\n--B--"));
    }

    #[test]
    fn malformed_and_ambiguous_bodies_are_not_taken_apart() {
        for body in [
            "",
            "x",
            "--B",
            "--B--",
            "--B--\r\n",
            "--B\r\nx",
            "--B\r\nx\r\n--B",
            "--B\r\nx\r\n--B\r\n",
            "--B\r\nx\n--B--",
            "--B\nx\r\n--B--",
            "--B\r\n--B--",
            "pre--B\r\nx\r\n--B--",
            "\n--B\r\nx\r\n--B--",
            "--B\r\nsee --B here\r\n--B--",
            "--B\r\nx\r\n--BB\r\ny\r\n--B--",
            "--B\r\nx\r\n--B--x",
            "--B\r\nx\r\n--B---",
            "--B\r\nx\r\n--B- -\r\n",
            "--B\r\nx\r\n--B--\r\n--B--\r\n",
        ] {
            assert_eq!(split(body), None, "{body:?}");
        }
    }

    #[test]
    fn a_boundary_of_dashes_does_not_confuse_it() {
        let split = Split::new(b"-----\r\n----\r\n-------", "---").unwrap();
        assert_eq!(split, Split { preamble: None, parts: vec![b"----"], epilogue: None });
    }

    proptest! {
        #[test]
        fn what_was_put_together_is_taken_apart_again(
            preamble in prop::option::of("[a\r\n-]{0,6}"),
            parts in prop::collection::vec("[a\r\n:-]{0,8}", 1..5),
            epilogue in prop::option::of("[a\r\n-]{0,6}"),
        ) {
            let mut body = preamble.as_ref().map_or(String::new(), |preamble| format!("{preamble}\r\n"));
            for part in &parts {
                body += &format!("--B\r\n{part}\r\n");
            }
            body += "--B--";
            body += &epilogue.as_ref().map_or(String::new(), |epilogue| format!("\r\n{epilogue}"));
            let parts = parts.iter().map(String::as_str).collect();
            prop_assert_eq!(split(&body), Some((preamble.as_deref(), parts, epilogue.as_deref())));
        }

        #[test]
        fn no_body_makes_it_panic(body in "(--B|\r\n|[-B x\r\n]){0,30}") {
            let _ = split(&body);
        }
    }
}
