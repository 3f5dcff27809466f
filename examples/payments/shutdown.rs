//! The signals that stop the server: SIGINT and SIGTERM, or Ctrl-C where there are no signals.

use std::{io, process};

#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens from the moment it is made, so that no signal is missed.
pub(crate) struct Signals {
    #[cfg(unix)]
    interrupt: Signal,
    #[cfg(unix)]
    terminate: Signal,
}

impl Signals {
    #[cfg(unix)]
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    #[cfg(not(unix))]
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {})
    }

    /// Waits for the next signal.
    #[cfg(unix)]
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Waits for the next signal.
    #[cfg(not(unix))]
    pub(crate) async fn next(&mut self) {
        // Without a handler nothing but the end of the process can stop the server.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Ends the process with exit code 130 when the next signal comes, whatever is still open.
    pub(crate) fn exit_at_the_next(mut self) {
        tokio::spawn(async move {
            self.next().await;
            process::exit(130);
        });
    }
}
