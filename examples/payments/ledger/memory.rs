//! A ledger in the memory of this process.

use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use super::{Ledger, Transaction};
use crate::{charge::Charge, problem::Problem};

#[derive(Debug, Default)]
pub(crate) struct MemoryLedger(Mutex<Vec<Charge>>);

impl MemoryLedger {
    fn charges(&self) -> MutexGuard<'_, Vec<Charge>> {
        // A panic cannot leave it half changed: every critical section is one step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Ledger for MemoryLedger {
    async fn insert(&self, charge: &Charge, _: Option<Transaction>) -> Result<(), Problem> {
        self.charges().push(charge.clone());
        Ok(())
    }

    async fn list(&self) -> Result<Vec<Charge>, Problem> {
        Ok(self.charges().clone())
    }

    async fn find(&self, id: &str) -> Result<Option<Charge>, Problem> {
        Ok(self.charges().iter().find(|charge| charge.id == id).cloned())
    }
}
