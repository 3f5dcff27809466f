//! The signals that stop the server: SIGINT, SIGTERM and SIGHUP, or Ctrl-C where there are no signals.

use std::{
    io::{self, Write},
    process,
};

#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens from the moment it is made, so that no signal is missed.
pub(crate) struct Signals {
    #[cfg(unix)]
    interrupt: Signal,
    #[cfg(unix)]
    terminate: Signal,
    #[cfg(unix)]
    hangup: Signal,
}

impl Signals {
    #[cfg(unix)]
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    #[cfg(not(unix))]
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {})
    }

    /// Waits for the next signal, and returns its number.
    #[cfg(unix)]
    pub(crate) async fn next(&mut self) -> i32 {
        let kind = tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.hangup.recv() => SignalKind::hangup(),
        };
        kind.as_raw_value()
    }

    /// Waits for the next Ctrl-C, and returns the number of SIGINT.
    #[cfg(not(unix))]
    pub(crate) async fn next(&mut self) -> i32 {
        // Without a handler nothing but the end of the process can stop the server.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        2
    }

    /// Ends the process when the next signal comes, whatever is still open. The exit code is the one that a shell gives
    /// to a process ended by this signal: 130 for SIGINT, 143 for SIGTERM, 129 for SIGHUP.
    pub(crate) fn exit_at_the_next(mut self) {
        tokio::spawn(async move {
            let signal = self.next().await;
            complain("a second signal: ending at once; open requests are cut off");
            process::exit(128 + signal);
        });
    }
}

/// Prints a line to stderr. Unlike `eprintln!`, it does not panic when nobody reads it: the process must end all the same.
fn complain(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}
