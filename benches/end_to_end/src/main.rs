//! Compares three servers over real sockets in one run: bare axum, axum with this layer, axum with the crate `idempotent`.
//!
//! The server is a process of its own on the first core, the clients are on the second. Each server answers the same
//! requests in turn, round by round, so that a disturbance of the machine hits all of them. Run it by
//! `./scripts/bench`; the options are `--seconds N` (of each measurement), `--rounds N` and `--connections N`.

#[path = "../../shared/answer.rs"]
mod answer;
mod load;
mod serve;

use std::{env, error::Error, process::exit, time::Duration};

use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};

use load::{Keys, Measured, Target};
use serve::Variant;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [mode, name] = &arguments[..]
        && mode == "serve"
    {
        pin_to(0)?;
        return serve::run(Variant::parse(name)?);
    }
    let options = Options::parse(&arguments);
    pin_to(1)?;
    compare(&options)
}

struct Options {
    seconds: Duration,
    rounds: usize,
    connections: usize,
}

impl Options {
    fn parse(arguments: &[String]) -> Self {
        let mut options = Self { seconds: Duration::from_secs(4), rounds: 3, connections: 64 };
        for pair in arguments.chunks(2) {
            match (pair[0].as_str(), pair.get(1).and_then(|value| value.parse::<u32>().ok())) {
                ("--seconds", Some(value @ 1..)) => options.seconds = Duration::from_secs(value.into()),
                ("--rounds", Some(value @ 1..)) => options.rounds = value as usize,
                ("--connections", Some(value @ 1..)) => options.connections = value as usize,
                _ => {
                    eprintln!("usage: scripts/bench [--seconds N] [--rounds N] [--connections N]");
                    exit(2);
                }
            }
        }
        options
    }
}

/// What is measured: a server, and whether the keys are new or were sent before.
const CASES: [(&str, Variant, Keys); 4] = [
    ("bare axum", Variant::Bare, Keys::New),
    ("tower-idempotency, first requests", Variant::Ours, Keys::New),
    ("tower-idempotency, replays", Variant::Ours, Keys::Repeated),
    ("idempotent 2.0, first requests", Variant::Idempotent, Keys::New),
];

fn compare(options: &Options) -> Outcome<()> {
    println!(
        "{} connections, {} rounds of {} s each, one core for the server and one for the clients",
        options.connections,
        options.rounds,
        options.seconds.as_secs()
    );
    let mut rounds: Vec<Vec<Measured>> = CASES.iter().map(|_| Vec::new()).collect();
    for _ in 0..options.rounds {
        for ((_, variant, keys), results) in CASES.iter().zip(&mut rounds) {
            let server = serve::Process::start(*variant)?;
            let target = Target { addr: server.addr, pid: server.pid(), keys: *keys };
            results.push(load::measure(target, options.connections, options.seconds)?);
        }
    }
    print(&rounds);
    Ok(())
}

fn print(rounds: &[Vec<Measured>]) {
    println!(
        "{:<36} {:>10} {:>9} {:>9} {:>8} {:>8} {:>12}   ratios to bare: rate, CPU, p99",
        "", "requests/s", "CPU us", "p50 us", "p99 us", "max us", "bytes/record"
    );
    let middle = |case: usize, field: fn(&Measured) -> f64| median(rounds[case].iter().map(field).collect());
    for (case, (name, _, keys)) in CASES.iter().enumerate() {
        let ratio = |field: fn(&Measured) -> f64| {
            median(rounds[case].iter().zip(&rounds[0]).map(|(own, bare)| field(own) / field(bare)).collect())
        };
        let memory = match keys {
            Keys::New if case > 0 => format!("{:.0}", middle(case, |it| it.bytes_per_request)),
            _ => "-".to_owned(),
        };
        println!(
            "{:<36} {:>10.0} {:>9.2} {:>9.0} {:>8.0} {:>8.0} {:>12}   {:.2}, {:.2}, {:.2}",
            name,
            middle(case, |it| it.rate),
            middle(case, |it| it.cpu_us),
            middle(case, |it| it.p50_us),
            middle(case, |it| it.p99_us),
            middle(case, |it| it.max_us),
            memory,
            ratio(|it| it.rate),
            ratio(|it| it.cpu_us),
            ratio(|it| it.p99_us),
        );
    }
    println!("Each number is the median of the rounds; each ratio is the median of the ratios within a round.");
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn pin_to(core: usize) -> Outcome<()> {
    let mut cores = CpuSet::new();
    cores.set(core)?;
    sched_setaffinity(Pid::from_raw(0), &cores)
        .map_err(|error| format!("core {core} cannot be used ({error}); two cores are needed"))?;
    Ok(())
}
