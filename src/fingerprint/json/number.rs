//! JSON numbers in their canonical form (RFC 8785, section 3.2.2.3).

/// Copies a number; `None` if it is malformed or differs from the shortest decimal form of its double.
pub(super) fn copy(rest: &mut &str, out: &mut String) -> Option<()> {
    let (sent, behind) = rest.split_at(length(rest.as_bytes())?);
    let double: f64 = sent.parse().ok()?;
    if !double.is_finite() {
        return None;
    }
    let mut buffer = ryu_js::Buffer::new();
    let shortest = buffer.format_finite(double);
    if Decimal::new(sent) != Decimal::new(shortest) {
        return None;
    }
    out.push_str(shortest);
    *rest = behind;
    Some(())
}

/// Returns the length of the number at the start (RFC 8259, section 6).
fn length(text: &[u8]) -> Option<usize> {
    let digits = |from: usize| text[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let some_digits = |from: usize| Some(digits(from)).filter(|count| *count > 0);
    let mut end = usize::from(text.starts_with(b"-"));
    end += if text.get(end) == Some(&b'0') { 1 } else { some_digits(end)? };
    if text.get(end) == Some(&b'.') {
        end += 1 + some_digits(end + 1)?;
    }
    if matches!(text.get(end), Some(b'e' | b'E')) {
        end += 1 + usize::from(matches!(text.get(end + 1), Some(b'+' | b'-')));
        end += some_digits(end)?;
    }
    Some(end)
}

/// The value of a decimal number: 0.d₁d₂d₃… times ten to the power of `exponent`, d₁ and the last digit not zero.
///
/// The digits stay where they are in the text, so that neither a long number nor a huge exponent costs memory.
struct Decimal<'a> {
    negative: bool,
    whole: &'a str,
    fraction: &'a str,
    exponent: i64,
}

impl<'a> Decimal<'a> {
    fn new(text: &'a str) -> Self {
        let (negative, text) = text.strip_prefix('-').map_or((false, text), |text| (true, text));
        let (mantissa, exponent) =
            text.split_once(['e', 'E']).map_or((text, 0), |(text, power)| (text, saturating(power)));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let (whole, fraction) = (whole.trim_start_matches('0'), fraction.trim_end_matches('0'));
        if whole.is_empty() {
            let digits = fraction.trim_start_matches('0');
            // Zero is zero, whatever its sign and exponent.
            let is_zero = digits.is_empty();
            let shift = (fraction.len() - digits.len()) as i64;
            let exponent = if is_zero { 0 } else { exponent - shift };
            return Self { negative: negative && !is_zero, whole, fraction: digits, exponent };
        }
        let exponent = exponent + whole.len() as i64;
        let whole = if fraction.is_empty() { whole.trim_end_matches('0') } else { whole };
        Self { negative, whole, fraction, exponent }
    }

    fn digits(&self) -> impl Iterator<Item = u8> {
        self.whole.bytes().chain(self.fraction.bytes())
    }
}

impl PartialEq for Decimal<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.negative == other.negative && self.exponent == other.exponent && self.digits().eq(other.digits())
    }
}

/// Reads an exponent; one that is too long for the type becomes one that no double has, with room to add a length.
fn saturating(exponent: &str) -> i64 {
    const FAR: i64 = i64::MAX / 2;
    let far = if exponent.starts_with('-') { -FAR } else { FAR };
    exponent.parse().map_or(far, |exponent: i64| exponent.clamp(-FAR, FAR))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn canonical(text: &str) -> Option<String> {
        let (mut rest, mut out) = (text, String::new());
        copy(&mut rest, &mut out).filter(|()| rest.is_empty()).map(|()| out)
    }

    #[test]
    fn numbers_are_written_as_ecmascript_does() {
        for (sent, expected) in [
            ("0", "0"),
            ("-0", "0"),
            ("-0.0e-7", "0"),
            ("0e99999999999999999999", "0"),
            ("10.50", "10.5"),
            ("10.5", "10.5"),
            ("1.0", "1"),
            ("100", "100"),
            ("1E2", "100"),
            ("1000e-1", "100"),
            ("0.1", "0.1"),
            ("-0.00150", "-0.0015"),
            ("0.000001", "0.000001"),
            ("0.0000001", "1e-7"),
            ("1e20", "100000000000000000000"),
            ("1e21", "1e+21"),
            ("1000000000000000000000", "1e+21"),
            ("9007199254740991", "9007199254740991"),
            ("9007199254740992", "9007199254740992"),
            ("5e-324", "5e-324"),
            ("1.7976931348623157e308", "1.7976931348623157e+308"),
        ] {
            assert_eq!(canonical(sent).as_deref(), Some(expected), "{sent}");
        }
    }

    #[test]
    fn a_number_that_a_double_does_not_hold_exactly_is_refused() {
        for sent in [
            "9007199254740993",
            "0.10000000000000000555",
            "0.1000000000000000055511151231257827021181583404541015625",
            "333333333.33333329",
            "1e400",
            "-1e400",
            "1e-400",
            "4e-324",
            "1.7976931348623158e308",
            "1e99999999999999999999",
            "1e-99999999999999999999",
            "123456789012345678901",
        ] {
            assert_eq!(canonical(sent), None, "{sent}");
        }
    }

    #[test]
    fn long_numbers_are_compared_by_value() {
        let zeros = "0".repeat(100_000);
        assert_eq!(canonical(&format!("1{zeros}e-100000")).as_deref(), Some("1"));
        assert_eq!(canonical(&format!("0.{zeros}1e100001")).as_deref(), Some("1"));
        assert_eq!(canonical(&format!("1.{zeros}")).as_deref(), Some("1"));
        assert_eq!(canonical(&format!("1.{zeros}1")), None);
        assert_eq!(canonical(&format!("1e{zeros}2")).as_deref(), Some("100"));
        assert_eq!(canonical(&format!("1e1{zeros}")), None);
    }

    #[test]
    fn of_two_shortest_forms_of_a_double_only_that_of_ecmascript_is_canonical() {
        assert_eq!("34230274051075.063".parse::<f64>(), "34230274051075.062".parse());
        assert_eq!(canonical("34230274051075.062").as_deref(), Some("34230274051075.062"));
        assert_eq!(canonical("34230274051075.063"), None);
    }

    #[test]
    fn what_is_no_json_number_is_refused() {
        for text in ["", "-", "+1", "01", "-01", "1.", ".5", "1e", "1e+", "1.e1", "0x1", "1_0", "NaN", "Infinity", "1 "]
        {
            assert_eq!(canonical(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_finite_double_in_any_notation_agrees_with_itself(
            double in prop::num::f64::NORMAL | prop::num::f64::SUBNORMAL | prop::num::f64::ZERO,
            zeros in 0_usize..4,
        ) {
            let shortest = ryu_js::Buffer::new().format_finite(double).to_owned();
            prop_assert_eq!(canonical(&shortest), Some(shortest.clone()));
            prop_assert_eq!(shortest.parse(), Ok(double));

            // Of two shortest forms, Rust may take the one that ECMAScript does not; then the raw bytes decide.
            let plain = format!("{double}");
            if let Some(expected) = canonical(&plain) {
                let point = if plain.contains('.') { "" } else { "." };
                let padded = format!("{plain}{point}0{}", "0".repeat(zeros));
                let scientific = format!("{double:e}").to_uppercase();
                prop_assert_eq!(&expected, &shortest);
                prop_assert_eq!(canonical(&padded), Some(expected.clone()));
                prop_assert_eq!(canonical(&scientific), Some(expected));
            }
        }

        #[test]
        fn integers_agree_only_with_themselves(a in -100_i64..100, b in -100_i64..100) {
            let near = |distance: i64| canonical(&((1_i64 << 53) + distance).to_string());
            if let (Some(first), Some(second)) = (near(a), near(b)) {
                prop_assert_eq!(first == second, a == b);
            }
        }
    }
}
