//! The connection to PostgreSQL: a pool, and errors at the start that say what to do.

use std::time::Duration;

use sqlx::{
    ConnectOptions, Connection, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};

/// How long a connection is waited for, at the start and in a request.
const PATIENCE: Duration = Duration::from_secs(5);

/// Opens a pool. The error holds no password.
pub(crate) async fn connect(url: &str, most: u32) -> Result<PgPool, String> {
    // What it says of a URL that it cannot read may quote it.
    let options: PgConnectOptions = url.parse().map_err(|_| {
        "the address of the database cannot be read; write postgres://USER:PASSWORD@HOST:PORT/DATABASE, and %XX for \
         characters of the password that have a meaning in a URL"
            .to_owned()
    })?;
    // The pool would try again and again, and say in the end that it had no time.
    let connection = match tokio::time::timeout(PATIENCE, options.connect()).await {
        Ok(connected) => connected.map_err(|error| explain(&error, &options))?,
        Err(_) => return Err(format!("{} did not answer within {} s", server(&options), PATIENCE.as_secs())),
    };
    let _ = connection.close().await;
    Ok(PgPoolOptions::new().max_connections(most).acquire_timeout(PATIENCE).connect_lazy_with(options))
}

fn explain(error: &sqlx::Error, options: &PgConnectOptions) -> String {
    let server = server(options);
    let database = options.get_database().unwrap_or_else(|| options.get_username());
    let user = options.get_username();
    match error.as_database_error().and_then(|error| error.code()).as_deref() {
        Some("28P01") => format!("{server} refuses this password of the user {user}"),
        Some("28000") => format!("{server} does not let the user {user} in: {error}"),
        Some("3D000") => format!("{server} has no database {database}; make it with `createdb {database}`"),
        Some(_) => format!("{server} refuses the connection: {error}"),
        None => format!("cannot reach {server}: {error}; is it running?"),
    }
}

fn server(options: &PgConnectOptions) -> String {
    match options.get_socket() {
        Some(folder) => format!("PostgreSQL at the socket in {}", folder.display()),
        None => format!("PostgreSQL at {}:{}", options.get_host(), options.get_port()),
    }
}
