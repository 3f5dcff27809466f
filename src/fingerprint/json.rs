//! The canonical form of a JSON document (RFC 8785).

use std::{cmp::Ordering, ops::Range};

mod number;
mod text;

/// How many arrays and objects may be open at once.
const MAX_DEPTH: usize = 128;

/// Returns the canonical form; `None` if the document has none that is safe to compare.
///
/// That is: it is not valid JSON in UTF-8, has something behind the value, a member name twice in one object, a lone
/// surrogate or a noncharacter (RFC 7493), more than 128 levels, or a number that a double does not hold exactly.
pub(super) fn canonical(document: &[u8]) -> Option<String> {
    let rest = std::str::from_utf8(document).ok()?;
    let mut scanner = Scanner { rest, out: String::with_capacity(rest.len()) };
    scanner.value(0)?;
    scanner.skip_whitespace();
    scanner.rest.is_empty().then_some(scanner.out)
}

/// Reads from `rest` and writes the canonical form of what it has read.
struct Scanner<'a> {
    rest: &'a str,
    out: String,
}

impl Scanner<'_> {
    /// Copies one value that stands inside of `depth` others, and the whitespace before it.
    fn value(&mut self, depth: usize) -> Option<()> {
        self.skip_whitespace();
        match self.rest.as_bytes().first()? {
            b'{' if depth < MAX_DEPTH => self.object(depth + 1),
            b'[' if depth < MAX_DEPTH => self.array(depth + 1),
            b'"' => text::copy(&mut self.rest, &mut self.out),
            b'-' | b'0'..=b'9' => number::copy(&mut self.rest, &mut self.out),
            b't' => self.copy("true"),
            b'f' => self.copy("false"),
            b'n' => self.copy("null"),
            _ => None,
        }
    }

    fn array(&mut self, depth: usize) -> Option<()> {
        self.copy("[")?;
        self.skip_whitespace();
        if self.rest.starts_with(']') {
            return self.copy("]");
        }
        loop {
            self.value(depth)?;
            self.skip_whitespace();
            if self.rest.starts_with(']') {
                return self.copy("]");
            }
            self.copy(",")?;
        }
    }

    fn object(&mut self, depth: usize) -> Option<()> {
        self.copy("{")?;
        self.skip_whitespace();
        if self.rest.starts_with('}') {
            return self.copy("}");
        }
        let mut members = Vec::new();
        loop {
            self.skip_whitespace();
            let start = self.out.len();
            text::copy(&mut self.rest, &mut self.out)?;
            let name = start..self.out.len();
            self.skip_whitespace();
            self.copy(":")?;
            self.value(depth)?;
            members.push(Member { name, end: self.out.len() });
            self.skip_whitespace();
            if self.rest.starts_with('}') {
                self.sort(members)?;
                return self.copy("}");
            }
            self.copy(",")?;
        }
    }

    /// Puts the members that end the output into the order of RFC 8785, section 3.2.3; `None` if a name is there twice.
    fn sort(&mut self, mut members: Vec<Member>) -> Option<()> {
        let order = |a: &Member, b: &Member| text::order(&self.out[a.name.clone()], &self.out[b.name.clone()]);
        if members.is_sorted_by(|a, b| order(a, b) == Ordering::Less) {
            return Some(());
        }
        let start = members.first()?.name.start;
        members.sort_unstable_by(order);
        if members.windows(2).any(|pair| order(&pair[0], &pair[1]) == Ordering::Equal) {
            return None;
        }
        let unsorted = self.out.split_off(start);
        for (index, member) in members.iter().enumerate() {
            if index > 0 {
                self.out.push(',');
            }
            self.out.push_str(&unsorted[member.name.start - start..member.end - start]);
        }
        Some(())
    }

    /// Copies `expected`, which must be next.
    fn copy(&mut self, expected: &str) -> Option<()> {
        self.rest = self.rest.strip_prefix(expected)?;
        self.out.push_str(expected);
        Some(())
    }

    fn skip_whitespace(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r']);
    }
}

/// Where a member stands in the output: its quoted name, and the end of its value.
struct Member {
    name: Range<usize>,
    end: usize,
}

#[cfg(test)]
mod tests;
