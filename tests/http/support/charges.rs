//! A handler that a test holds up, and requests whose end it sees.

use std::sync::Arc;

use axum::{
    Router,
    extract::{Request, State},
    middleware::{Next, from_fn_with_state},
    response::Response,
    routing::post,
};
use http::StatusCode;
use tokio::sync::Semaphore;
use tower_idempotency::{IdempotencyKey, IdempotencyLayer, Scope, Store, store::RecordId};

use super::Runs;

/// Charges that count their runs, and end when they are let go.
#[derive(Clone)]
pub(crate) struct Charges {
    pub(crate) runs: Runs,
    gate: Arc<Semaphore>,
}

impl Charges {
    /// Each charge waits until it is let go.
    pub(crate) fn held() -> Self {
        Self { runs: Runs::default(), gate: Arc::new(Semaphore::new(0)) }
    }

    /// No charge waits.
    pub(crate) fn free() -> Self {
        let charges = Self::held();
        charges.gate.add_permits(Semaphore::MAX_PERMITS);
        charges
    }

    /// Lets so many charges end, or takes so many steps.
    pub(crate) fn let_go(&self, charges: usize) {
        self.gate.add_permits(charges);
    }

    /// One step of a charge, for handlers of their own.
    pub(crate) async fn step(&self) {
        self.gate.acquire().await.unwrap().forget();
    }

    /// Counts a run, waits, and answers with 201 and the number of the run.
    pub(crate) async fn charge(&self) -> (StatusCode, String) {
        let run = self.runs.count();
        self.step().await;
        (StatusCode::CREATED, format!("charge {run}"))
    }
}

/// Serves the charges at `/pay` behind a layer.
pub(crate) fn pay<S: Store>(charges: &Charges, layer: &IdempotencyLayer<S>) -> Router {
    let charges = charges.clone();
    Router::new().route("/pay", post(async move || charges.charge().await)).layer(layer.clone())
}

/// The record of a key where no scope is set.
pub(crate) fn record(key: &str) -> RecordId {
    RecordId::new(Scope::new(""), IdempotencyKey::new(key).unwrap())
}

/// Counts how requests come and go, as an outermost middleware.
#[derive(Clone, Default)]
pub(crate) struct Visits {
    pub(crate) arrived: Runs,
    pub(crate) answered: Runs,
    /// Those whose future was dropped unfinished.
    pub(crate) dropped: Runs,
}

impl Visits {
    /// Tells whether so many requests arrived, and none of them is there any more.
    pub(crate) fn over(&self, arrived: usize) -> bool {
        self.arrived.total() >= arrived && self.arrived.total() == self.answered.total() + self.dropped.total()
    }

    /// Counts the requests of an application.
    pub(crate) fn watch(&self, app: Router) -> Router {
        app.layer(from_fn_with_state(self.clone(), visit))
    }
}

async fn visit(State(visits): State<Visits>, request: Request, next: Next) -> Response {
    struct Visit(Visits, bool);
    impl Drop for Visit {
        fn drop(&mut self) {
            if self.1 { &self.0.answered } else { &self.0.dropped }.count();
        }
    }
    visits.arrived.count();
    let mut visit = Visit(visits, false);
    let response = next.run(request).await;
    visit.1 = true;
    response
}
