//! Measures the PostgreSQL store against a throw-away PostgreSQL of its own, and beside what it could be replaced with.
//!
//! What is compared is measured in one run, in turn, round by round, so that a disturbance of the machine hits all of it.
//! Nothing is pinned to a core: the clients, the server and PostgreSQL share what there is. Run it by
//! `./scripts/bench-postgres`; it prints the subcommands if it does not know one.

#[path = "../../shared/answer.rs"]
mod answer;
mod cluster;
mod first;
mod growth;
mod load;
mod measured;
mod partitions;
mod pgbench;
mod purge;
mod replay;
mod rows;
mod serve;
mod textbook;

use std::{env, error::Error, process::exit, time::Duration};

use cluster::Cluster;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const USAGE: &str = "\
usage: scripts/bench-postgres [SUBCOMMAND] [OPTION VALUE]...

  first        first requests: plain statements, the flow by hand, this layer (what runs without a subcommand)
  replay       replays beside a select by primary key
  single       first requests of one client
  growth       one claim after the other in a small table and in a large one
  purge        first requests beside a purge; the size of the table over ten purges
  partitions   plain SQL: deleting in batches beside dropping partitions, and what partitions cost a claim

  --seconds N       of each measurement (4)
  --rounds N        (5)
  --connections N   (64; single: 1)
  --pool N          connections of a server to PostgreSQL (the best of some for the flow by hand)
  --rows N          of the large table (growth, partitions: 10000000; purge: 1000000)
  --hot-rows N      of the tables on which partitions measures claims (1000000)
";

fn main() -> Outcome<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let Some(("serve", rest)) = arguments.split_first().map(|(mode, rest)| (mode.as_str(), rest)) {
        return serve::run(rest);
    }
    let Some(options) = Options::parse(&arguments) else {
        eprint!("{USAGE}");
        exit(2);
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let cluster = Cluster::start().await?;
        println!(
            "PostgreSQL {}, loopback, fsync and synchronous_commit on, shared_buffers 512 MB; {} rounds of {} s",
            cluster.version().await?,
            options.rounds,
            options.seconds.as_secs()
        );
        match options.subcommand {
            Subcommand::First => first::run(&cluster, &options).await,
            Subcommand::Replay => replay::run(&cluster, &options).await,
            Subcommand::Single => first::run_single(&cluster, &options).await,
            Subcommand::Growth => growth::run(&cluster, &options).await,
            Subcommand::Purge => purge::run(&cluster, &options).await,
            Subcommand::Partitions => partitions::run(&cluster, &options).await,
        }
    })
}

#[derive(Debug, Clone, Copy)]
enum Subcommand {
    First,
    Replay,
    Single,
    Growth,
    Purge,
    Partitions,
}

struct Options {
    subcommand: Subcommand,
    seconds: Duration,
    rounds: usize,
    connections: usize,
    pool: Option<u32>,
    rows: Option<u32>,
    hot_rows: u32,
}

impl Options {
    fn parse(arguments: &[String]) -> Option<Self> {
        let (subcommand, pairs) = match arguments.split_first() {
            Some((name, rest)) if !name.starts_with('-') => (name.as_str(), rest),
            _ => ("first", arguments),
        };
        let subcommand = match subcommand {
            "first" => Subcommand::First,
            "replay" => Subcommand::Replay,
            "single" => Subcommand::Single,
            "growth" => Subcommand::Growth,
            "purge" => Subcommand::Purge,
            "partitions" => Subcommand::Partitions,
            _ => return None,
        };
        let mut options = Self {
            subcommand,
            seconds: Duration::from_secs(4),
            rounds: 5,
            connections: 64,
            pool: None,
            rows: None,
            hot_rows: 1_000_000,
        };
        for pair in pairs.chunks(2) {
            let value = pair.get(1)?.parse().ok().filter(|value: &u32| *value > 0)?;
            match pair[0].as_str() {
                "--seconds" => options.seconds = Duration::from_secs(value.into()),
                "--rounds" => options.rounds = value as usize,
                "--connections" => options.connections = value as usize,
                "--pool" => options.pool = Some(value),
                "--rows" => options.rows = Some(value),
                "--hot-rows" => options.hot_rows = value,
                _ => return None,
            }
        }
        Some(options)
    }
}
