//! The handlers of charges.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{
        Path, State,
        rejection::{JsonRejection, PathRejection},
    },
    http::{StatusCode, header},
    response::IntoResponse,
};
use tower_idempotency::Attempt;

use crate::{
    charge::{Charge, NewCharge},
    ledger::{Ledger, Transaction},
    object::Object,
    problem::Problem,
};

/// `POST /v1/charges`: charges a customer.
///
/// There is a transaction if the store and the ledger share a database and the request carries a key.
pub(crate) async fn create(
    State(charges): State<Charges>,
    attempt: Option<Attempt>,
    transaction: Option<Transaction>,
    body: Result<Json<Object<NewCharge>>, JsonRejection>,
) -> Result<impl IntoResponse, Problem> {
    let Json(Object(new)) = body?;
    // `attempt.is_rerun()` says that an earlier run of this key was cut short. Ask the payment gateway what became of it
    // before charging again. Here there is nothing to ask: the charge below is one step that cannot be cut.
    let charge = Charge::new(new, attempt.as_ref().map(Attempt::number));
    tokio::time::sleep(charges.delay).await;
    charges.ledger.insert(&charge, transaction).await?;
    charge.log();
    Ok((StatusCode::CREATED, [(header::LOCATION, format!("/v1/charges/{}", charge.id))], Json(charge)))
}

/// `GET /v1/charges`: the ledger, oldest first.
pub(crate) async fn list(State(charges): State<Charges>) -> Result<Json<Vec<Charge>>, Problem> {
    charges.ledger.list().await.map(Json)
}

/// `GET /v1/charges/{id}`: one charge.
pub(crate) async fn find(
    State(charges): State<Charges>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Charge>, Problem> {
    let found = match id {
        Ok(Path(id)) => charges.ledger.find(&id).await?,
        Err(_) => None,
    };
    found.map(Json).ok_or_else(|| Problem::new(StatusCode::NOT_FOUND, "There is no charge with this id."))
}

/// What the handlers share.
#[derive(Clone)]
pub(crate) struct Charges {
    ledger: Arc<dyn Ledger>,
    delay: Duration,
}

impl Charges {
    /// Each charge will take `delay`, besides the time for writing it down.
    pub(crate) fn new(ledger: impl Ledger, delay: Duration) -> Self {
        Self { ledger: Arc::new(ledger), delay }
    }
}
