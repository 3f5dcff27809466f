//! What is printed at the start: the address, and lines to paste into another terminal.

use std::net::SocketAddr;

use tower_idempotency::Profile;
use uuid::Uuid;

/// Returns the text. The key in it is a new one at each start, so that the first charge is always a first one.
pub(crate) fn text(address: SocketAddr, profile: Profile) -> String {
    let name = Uuid::new_v4().simple().to_string();
    let first = charge(address, profile, &format!("try-{}", &name[..8]), 1999);
    let other = charge(address, profile, &format!("try-{}", &name[..8]), 2999);
    let at_once = charge(address, profile, &format!("try-{}", &name[8..16]), 500);
    let refused = if profile == Profile::Ietf { 422 } else { 400 };
    format!(
        "listening on http://{address}

Paste into another terminal:

  # A charge.
  curl -i {first}

  # The same again, as often as you like: the same answer, idempotent-replayed: true, and no second charge.
  curl -i {first}

  # The same key with another amount is refused with {refused}.
  curl -i {other}

  # Twenty at once with one key: one charge. The others get its answer, or 409 while it runs
  # (a charge is over at once here: start with --delay-ms 1000 to see 409).
  seq 20 | xargs -I@ -P 20 curl -s -o /dev/null -w '%{{http_code}}\\n' {at_once}

  # The ledger: one line for each charge that was made.
  curl http://{address}/v1/charges
"
    )
}

/// Returns the arguments of `curl` that send a charge.
fn charge(address: SocketAddr, profile: Profile, key: &str, amount: u32) -> String {
    let key = match profile {
        Profile::Ietf => format!("\"{key}\""),
        Profile::Default | Profile::Stripe => key.to_owned(),
    };
    let body = format!(r#"{{"amount": {amount}, "currency": "EUR", "customer_id": "cus_7"}}"#);
    format!("http://{address}/v1/charges -H 'Idempotency-Key: {key}' -H 'Content-Type: application/json' -d '{body}'")
}
