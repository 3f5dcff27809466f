//! Charges: what a client may ask for, the ledger, and the handlers.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use axum::{
    Json,
    extract::{
        Path, State,
        rejection::{JsonRejection, PathRejection},
    },
    http::{StatusCode, header},
    response::IntoResponse,
};
use serde::{Deserialize, Serialize};
use tower_idempotency::Attempt;
use uuid::Uuid;

use crate::{object::Object, problem::Problem, say};

/// `POST /v1/charges`: charges a customer.
pub(crate) async fn create(
    State(charges): State<Charges>,
    attempt: Option<Attempt>,
    body: Result<Json<Object<NewCharge>>, JsonRejection>,
) -> Result<impl IntoResponse, Problem> {
    let Json(Object(new)) = body?;
    // `attempt.is_rerun()` says that an earlier run of this key was cut short. Ask the payment gateway what became of it
    // before charging again. Here there is nothing to ask: the charge below is one step that cannot be cut.
    let charge = Charge::new(new, attempt.as_ref().map(Attempt::number));
    tokio::time::sleep(charges.delay).await;
    charge.log();
    charges.ledger().push(charge.clone());
    Ok((StatusCode::CREATED, [(header::LOCATION, format!("/v1/charges/{}", charge.id))], Json(charge)))
}

/// `GET /v1/charges`: the ledger, oldest first.
pub(crate) async fn list(State(charges): State<Charges>) -> Json<Vec<Charge>> {
    Json(charges.ledger().clone())
}

/// `GET /v1/charges/{id}`: one charge.
pub(crate) async fn find(
    State(charges): State<Charges>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Charge>, Problem> {
    let found = id.ok().and_then(|Path(id)| charges.ledger().iter().find(|charge| charge.id == id).cloned());
    found.map(Json).ok_or_else(|| Problem::new(StatusCode::NOT_FOUND, "There is no charge with this id."))
}

/// All charges. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Charges {
    ledger: Arc<Mutex<Vec<Charge>>>,
    delay: Duration,
}

impl Charges {
    /// Makes an empty ledger; each charge will take `delay`.
    pub(crate) fn new(delay: Duration) -> Self {
        Self { ledger: Arc::default(), delay }
    }

    fn ledger(&self) -> MutexGuard<'_, Vec<Charge>> {
        // A panic cannot leave it half changed: every critical section is one step.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A charge that was made.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Charge {
    id: String,
    amount: Amount,
    currency: Currency,
    customer_id: CustomerId,
    /// Seconds since 1970.
    created_at: u64,
    /// Which run of its key made it; `null` without a key.
    attempt: Option<u32>,
}

impl Charge {
    fn new(new: NewCharge, attempt: Option<u32>) -> Self {
        let NewCharge { amount, currency, customer_id } = new;
        let id = format!("ch_{}", Uuid::new_v4().simple());
        let created_at = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
        Self { id, amount, currency, customer_id, created_at, attempt }
    }

    /// Prints a line, without the key: whoever has it can read the answer.
    fn log(&self) {
        let attempt = match self.attempt {
            Some(number) => format!("attempt {number}"),
            None => "without a key".to_owned(),
        };
        say(format_args!("charge {} of {} {}, {attempt}", self.id, self.amount.0, self.currency.0));
    }
}

/// A charge to be made. Every rule is in the type of its field, so that the error says which field breaks it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewCharge {
    amount: Amount,
    currency: Currency,
    customer_id: CustomerId,
}

/// An amount in the currency's minor unit, such as cents.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(try_from = "u64")]
struct Amount(u64);

impl TryFrom<u64> for Amount {
    type Error = &'static str;

    fn try_from(amount: u64) -> Result<Self, Self::Error> {
        match amount {
            1..=99_999_999 => Ok(Self(amount)),
            _ => Err("must be from 1 to 99999999"),
        }
    }
}

/// A currency code such as `eur`, in lower case.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "String")]
struct Currency(String);

impl TryFrom<String> for Currency {
    type Error = &'static str;

    fn try_from(code: String) -> Result<Self, Self::Error> {
        if code.len() == 3 && code.bytes().all(|byte| byte.is_ascii_alphabetic()) {
            Ok(Self(code.to_ascii_lowercase()))
        } else {
            Err("must be three letters, such as eur")
        }
    }
}

/// A customer of the caller.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "String")]
struct CustomerId(String);

impl TryFrom<String> for CustomerId {
    type Error = &'static str;

    fn try_from(id: String) -> Result<Self, Self::Error> {
        if (1..=64).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic()) {
            Ok(Self(id))
        } else {
            Err("must be 1 to 64 visible ASCII characters")
        }
    }
}
