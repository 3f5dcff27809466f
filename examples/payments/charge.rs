//! A charge: what a client may ask for, and what is made of it.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::say;

/// A charge that was made.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Charge {
    pub(crate) id: String,
    pub(crate) amount: Amount,
    pub(crate) currency: Currency,
    pub(crate) customer_id: CustomerId,
    /// Seconds since 1970.
    pub(crate) created_at: u64,
    /// Which run of its key made it; `null` without a key.
    pub(crate) attempt: Option<u32>,
}

impl Charge {
    pub(crate) fn new(new: NewCharge, attempt: Option<u32>) -> Self {
        let NewCharge { amount, currency, customer_id } = new;
        let id = format!("ch_{}", Uuid::new_v4().simple());
        let created_at = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
        Self { id, amount, currency, customer_id, created_at, attempt }
    }

    /// Prints a line, without the key: whoever has it can read the answer.
    pub(crate) fn log(&self) {
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
pub(crate) struct Amount(pub(crate) u64);

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
pub(crate) struct Currency(pub(crate) String);

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
pub(crate) struct CustomerId(pub(crate) String);

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
