//! Statements without HTTP and without Rust: what PostgreSQL does when nothing is in its way.

use std::{fs, path::Path, time::Duration};

use crate::{Outcome, cluster::Cluster, measured::Measured};

/// Runs a script with prepared statements for `time`; `variables` are put into it by name.
pub fn run(
    cluster: &Cluster,
    database: &str,
    script: &str,
    variables: &[(&str, &str)],
    clients: usize,
    time: Duration,
) -> Outcome<Measured> {
    let dir = cluster.dir().join("pgbench");
    fs::create_dir(&dir)?;
    let measure = || {
        let file = dir.join("script.sql");
        fs::write(&file, script)?;
        let mut command = cluster.client("pgbench", database);
        command.args([
            "-n",
            "-M",
            "prepared",
            "-j",
            "1",
            "-c",
            &clients.to_string(),
            "-T",
            &time.as_secs().to_string(),
        ]);
        command.arg("-l").arg("--log-prefix").arg(dir.join("transactions")).arg("-f").arg(&file);
        for (name, value) in variables {
            command.arg("-D").arg(format!("{name}={value}"));
        }
        let output = command.output()?;
        if !output.status.success() {
            return Err(format!("pgbench failed: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        let rate = rate(&String::from_utf8_lossy(&output.stdout))?;
        let measured = Measured::of(latencies_us(&dir)?, time);
        Ok(Measured { rate, ..measured })
    };
    let measured = measure();
    fs::remove_dir_all(&dir)?;
    measured
}

/// Finds the rate in what pgbench prints, the time of connecting left out.
fn rate(text: &str) -> Outcome<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("tps = ")).ok_or("pgbench printed no rate")?;
    let number = line.split_whitespace().next().ok_or("pgbench printed no rate")?;
    Ok(number.parse()?)
}

/// Reads the log: a line for each transaction, the third column its time in microseconds.
fn latencies_us(dir: &Path) -> Outcome<Vec<f64>> {
    let mut latencies = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "sql") {
            continue;
        }
        for line in fs::read_to_string(path)?.lines() {
            let column = line.split(' ').nth(2).ok_or("a line of pgbench's log is too short")?;
            latencies.push(column.parse()?);
        }
    }
    Ok(latencies)
}
