//! What a measurement found, and tables of it.

use std::time::Duration;

#[derive(Debug, Clone, Copy)]
pub struct Measured {
    pub rate: f64,
    pub p50_us: f64,
    pub p99_us: f64,
}

impl Measured {
    /// Sums up the latencies of what was done in `elapsed`.
    pub fn of(mut latencies_us: Vec<f64>, elapsed: Duration) -> Self {
        latencies_us.sort_by(f64::total_cmp);
        Self {
            rate: latencies_us.len() as f64 / elapsed.as_secs_f64(),
            p50_us: at(&latencies_us, 0.5),
            p99_us: at(&latencies_us, 0.99),
        }
    }
}

/// The rounds of one thing that is measured.
pub struct Case {
    pub name: String,
    pub rounds: Vec<Measured>,
}

impl Case {
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), rounds: Vec::new() }
    }

    pub fn median(&self, field: fn(&Measured) -> f64) -> f64 {
        median(self.rounds.iter().map(field).collect())
    }

    /// Returns the median of the ratios within a round.
    pub fn ratio(&self, other: &Self, field: fn(&Measured) -> f64) -> f64 {
        median(self.rounds.iter().zip(&other.rounds).map(|(own, other)| field(own) / field(other)).collect())
    }
}

/// Prints a line for each case; `bases` are the cases that the others are compared with.
pub fn print(unit: &str, cases: &[Case], bases: &[usize]) {
    let heads: String =
        bases.iter().map(|base| format!("   to ({}): rate, p50, p99", char::from(b'a' + *base as u8))).collect();
    println!("{:<52} {:>12} {:>9} {:>9}{heads}", "", unit, "p50 us", "p99 us");
    for (number, case) in cases.iter().enumerate() {
        let ratios: String = bases
            .iter()
            .map(|base| {
                let base = &cases[*base];
                format!(
                    "      {:>5.2}, {:>5.2}, {:>5.2}",
                    case.ratio(base, |it| it.rate),
                    case.ratio(base, |it| it.p50_us),
                    case.ratio(base, |it| it.p99_us)
                )
            })
            .collect();
        println!(
            "({}) {:<48} {:>12.0} {:>9.0} {:>9.0}{ratios}",
            char::from(b'a' + number as u8),
            case.name,
            case.median(|it| it.rate),
            case.median(|it| it.p50_us),
            case.median(|it| it.p99_us),
        );
    }
    println!("Each number is the median of the rounds; each ratio is the median of the ratios within a round.");
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    at(&values, 0.5)
}

/// Returns the value below which `part` of the sorted values are; not a number if there are none.
fn at(sorted: &[f64], part: f64) -> f64 {
    let index = (sorted.len() as f64 * part) as usize;
    sorted.get(index.min(sorted.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}
