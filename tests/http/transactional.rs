//! The handler's writes and the completion of its key commit together, or neither does.

use std::{io, time::Duration};

use axum::{Extension, Router, routing::post};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use tokio::time::timeout;
use tower::{BoxError, Layer, service_fn};
use tower_idempotency::{
    Attempt, Body, CutShort, Fingerprint, IdempotencyLayer, NothingExecuted, Store, StoreOutage, StoredResponse,
    store::{Claim, Fenced, Lease, NewClaim, Token},
    testing::{Fault, Operation},
};

use crate::support::{
    Answer, Charges, Http, Ledger, PATIENCE, Pen, Reply, Runs, Seen, Server, Trouble, VERSIONS, Version, Visits,
    framed, go_away, guard, keyed, record, reply, serve,
};

/// A layer whose lease is so long that a key blocked for it would stay blocked.
fn transactional(ledger: &Ledger) -> IdempotencyLayer<Ledger> {
    let layer = IdempotencyLayer::new(ledger.clone()).lease(20 * PATIENCE).store_timeout(Duration::from_millis(50));
    layer.transactional()
}

/// Serves a handler that writes an entry and answers with the status in the path, and with its run and attempt.
async fn serve_entries(layer: &IdempotencyLayer<Ledger>, runs: &Runs) -> Server {
    guard(layer, runs, |seen: Seen| respond(&seen)).await
}

/// Writes an entry and answers with the status in the path, and with the run and the attempt.
fn respond(seen: &Seen) -> Response<Reply> {
    let attempt = seen.head.extensions.get::<Attempt>().unwrap().number();
    seen.head.extensions.get::<Pen>().unwrap().write(format!("run {}", seen.run));
    let status: StatusCode = seen.head.uri.path()[1..].parse().unwrap();
    reply(Response::builder().status(status), format!("run {}, attempt {attempt}", seen.run))
}

#[track_caller]
fn assert_not_committed(answer: &Answer) {
    assert_eq!((answer.status, answer.problem().as_str()), (StatusCode::SERVICE_UNAVAILABLE, "not-committed"));
    assert_eq!(answer.headers["retry-after"], "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_success_commits_what_the_handler_wrote_together_with_its_answer() {
    for version in VERSIONS {
        for path in ["/200", "/201", "/303"] {
            let (ledger, runs, http) = (Ledger::new(), Runs::default(), Http::new(version));
            let server = serve_entries(&transactional(&ledger), &runs).await;

            let first = http.post(&server, path, "k", "").await;
            assert_eq!(ledger.events(), ["committed"], "and no second write");
            let retry = http.post(&server, path, "k", "").await;

            assert_eq!((&first.body[..], first.is_replay()), (&b"run 1, attempt 1"[..], false));
            assert_eq!((&retry.body, retry.status, retry.is_replay()), (&first.body, first.status, true));
            assert_eq!(ledger.entries(), ["run 1"]);
            assert_eq!(runs.total(), 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_answer_rolls_back_and_is_replayed() {
    for version in VERSIONS {
        for path in ["/402", "/500"] {
            let (ledger, runs, http) = (Ledger::new(), Runs::default(), Http::new(version));
            let server = serve_entries(&transactional(&ledger), &runs).await;

            let first = http.post(&server, path, "k", "").await;
            assert_eq!(ledger.events(), ["rolled back", "completed"]);
            let retry = http.post(&server, path, "k", "").await;

            assert_eq!((&retry.body, retry.status, retry.is_replay()), (&first.body, first.status, true));
            assert_eq!(ledger.entries(), [""; 0]);
            assert_eq!(runs.total(), 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_predicate_says_for_which_answers_is_committed() {
    let (ledger, http) = (Ledger::new(), Http::new(Version::Http1));
    let layer = transactional(&ledger).commit_when(|head| head.status == StatusCode::PAYMENT_REQUIRED);
    let server = serve_entries(&layer, &Runs::default()).await;

    for path in ["/402", "/201"] {
        let first = http.post(&server, path, path, "").await;
        let retry = http.post(&server, path, path, "").await;
        assert_eq!((&retry.body, retry.is_replay()), (&first.body, true));
    }
    assert_eq!(ledger.events(), ["committed", "rolled back", "completed"]);
    assert_eq!(ledger.entries(), ["run 1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_the_handler_does_not_use_changes_nothing() {
    for version in VERSIONS {
        for fault in [None, Some(Fault::BeforeEffect)] {
            let (ledger, runs, http) = (Ledger::new(), Runs::default(), Http::new(version));
            let layer = transactional(&ledger);
            let server = guard(&layer, &runs, |seen| {
                assert!(seen.head.extensions.get::<Pen>().is_some());
                reply(Response::builder().status(201), "done")
            })
            .await;
            if let Some(fault) = fault {
                ledger.records.fail_next(Operation::Complete, fault);
            }

            assert_eq!(http.post(&server, "/", "k", "").await.body, "done");
            assert_eq!(layer.drain(PATIENCE).await, 0);
            assert!(http.post(&server, "/", "k", "").await.is_replay());
            assert_eq!(runs.total(), 1);
            assert!(ledger.events().iter().all(|event| *event == "completed"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_option_the_handler_finds_no_transaction() {
    let (ledger, runs, http) = (Ledger::new(), Runs::default(), Http::new(Version::Http1));
    let layer = IdempotencyLayer::new(ledger.clone());
    let server =
        guard(&layer, &runs, |seen| reply(Response::builder(), format!("{:?}", seen.head.extensions.get::<Pen>())))
            .await;
    assert_eq!(http.post(&server, "/", "k", "").await.body, "None");
    assert_eq!(ledger.events(), ["completed"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_without_a_record_finds_no_transaction() {
    let (ledger, runs, http) = (Ledger::new(), Runs::default(), Http::new(Version::Http1));
    let layer = transactional(&ledger).on_outage(StoreOutage::Proceed);
    let server = guard(&layer, &runs, |seen| {
        let is_protected = seen.head.extensions.get::<Attempt>().unwrap().is_protected();
        reply(Response::builder(), format!("{is_protected} {:?}", seen.head.extensions.get::<Pen>().is_some()))
    })
    .await;
    ledger.records.fail_next(Operation::Claim, Fault::BeforeEffect);
    assert_eq!(http.post(&server, "/", "k", "").await.body, "false false");
    assert_eq!(layer.drain(PATIENCE).await, 0);
    assert_eq!(http.post(&server, "/", "k", "").await.body, "true true");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_not_stored_rolls_back_and_frees_the_key() {
    for version in VERSIONS {
        let (ledger, runs, http) = (Ledger::new(), Runs::default(), Http::new(version));
        let server = guard(&transactional(&ledger), &runs, |seen| {
            let mut response = respond(&seen);
            if seen.run == 1 && response.status().is_success() {
                response.extensions_mut().insert(NothingExecuted);
            }
            response
        })
        .await;

        assert_eq!(http.post(&server, "/201", "k", "").await.body, "run 1, attempt 1");
        assert_eq!(ledger.events(), ["rolled back", "released"]);
        assert_eq!(http.post(&server, "/503", "l", "").await.body, "run 2, attempt 1");
        assert_eq!(ledger.events(), ["rolled back", "released"]);
        assert_eq!(ledger.entries(), [""; 0]);

        assert_eq!(http.post(&server, "/201", "k", "").await.body, "run 3, attempt 1");
        assert_eq!(ledger.entries(), ["run 3"]);
    }
}

/// How a run is cut short.
#[derive(Debug, Clone, Copy)]
enum End {
    Error,
    Panic,
    BrokenBody,
    Marked,
}

/// Serves a handler whose first run is cut short after it wrote its entry.
async fn serve_cut_short(layer: &IdempotencyLayer<Ledger>, end: End) -> Server {
    let runs = Runs::default();
    serve(layer.layer(service_fn(move |request: Request<Body<Incoming>>| {
        let run = runs.count();
        async move {
            request.extensions().get::<Pen>().unwrap().write(format!("run {run}"));
            let attempt = request.extensions().get::<Attempt>().unwrap().number();
            let whole = Full::from(format!("attempt {attempt}")).map_err(|never| match never {}).boxed_unsync();
            let mut response: Response<UnsyncBoxBody<Bytes, io::Error>> = Response::new(whole);
            match end {
                _ if run > 1 => {}
                End::Error => return Err(BoxError::from("cut short")),
                End::Panic => panic!("cut short"),
                End::BrokenBody => {
                    let frames = [Ok(Frame::data(Bytes::from("half"))), Err(io::Error::other("cut short"))];
                    response = Response::new(StreamBody::new(stream::iter(frames)).boxed_unsync());
                }
                End::Marked => drop(response.extensions_mut().insert(CutShort)),
            }
            Ok(response)
        }
    })))
    .await
}

/// Sends a request whose answer may break off.
async fn try_post(version: Version, server: &Server) {
    let request = keyed(server, "/", "k").body(Full::default()).unwrap();
    if let Ok(response) = Http::new(version).try_open(request).await {
        let _ = timeout(PATIENCE, response.into_body().collect()).await.expect("an end in time");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_cut_short_leaves_nothing_behind() {
    for version in VERSIONS {
        for end in [End::Error, End::Panic, End::BrokenBody, End::Marked] {
            for trouble in [None, Some(Trouble::HangInRollback), Some(Trouble::PanicInRollback)] {
                let (ledger, http) = (Ledger::new(), Http::new(version));
                let server = serve_cut_short(&transactional(&ledger), end).await;
                trouble.into_iter().for_each(|trouble| ledger.plan(trouble));

                try_post(version, &server).await;
                assert_eq!(ledger.events(), ["rolled back", "abandoned"], "{end:?}, {trouble:?}");
                assert_eq!(ledger.entries(), [""; 0]);

                assert_eq!(http.post(&server, "/", "k", "").await.body, "attempt 2", "{end:?}");
                assert_eq!(ledger.entries(), ["run 2"]);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_fails_leaves_nothing_behind_and_a_retry_runs_as_attempt_1() {
    for version in VERSIONS {
        for trouble in [Trouble::FailBefore, Trouble::HangBefore, Trouble::PanicBefore] {
            let (ledger, runs, http) = (Ledger::new(), Runs::default(), Http::new(version));
            let server = serve_entries(&transactional(&ledger), &runs).await;
            ledger.plan(trouble);

            assert_not_committed(&http.post(&server, "/201", "k", "").await);
            assert_eq!(
                ledger.events(),
                ["rolled back", "released"],
                "{trouble:?}: no lock is left when it is released"
            );
            assert_eq!(ledger.entries(), [""; 0]);

            assert_eq!(http.post(&server, "/201", "k", "").await.body, "run 2, attempt 1", "{trouble:?}");
            assert!(http.post(&server, "/201", "k", "").await.is_replay());
            assert_eq!(ledger.entries(), ["run 2"]);
            assert_eq!(runs.total(), 2);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_answer_is_lost_gives_the_client_the_real_answer() {
    for version in VERSIONS {
        for trouble in [Trouble::FailAfter, Trouble::HangAfter, Trouble::PanicAfter] {
            let (ledger, runs, http) = (Ledger::new(), Runs::default(), Http::new(version));
            let server = serve_entries(&transactional(&ledger), &runs).await;
            ledger.plan(trouble);

            let first = http.post(&server, "/201", "k", "").await;
            let retry = http.post(&server, "/201", "k", "").await;

            assert_eq!((first.status.as_u16(), &first.body[..]), (201, &b"run 1, attempt 1"[..]), "{trouble:?}");
            assert!(!first.is_replay() && retry.is_replay());
            assert_eq!(retry.body, first.body);
            assert_eq!(ledger.entries(), ["run 1"]);
            assert_eq!(runs.total(), 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_store_is_down_a_failed_commit_is_answered_with_503_and_settled_in_the_background() {
    for (trouble, entries, retry_body) in [
        (Trouble::FailBefore, vec!["run 2"], "run 2, attempt 1"),
        (Trouble::FailAfter, vec!["run 1"], "run 1, attempt 1"),
    ] {
        for is_lookup in [false, true] {
            let (ledger, runs, http) = (Ledger::new(), Runs::default(), Http::new(Version::Http2));
            let layer = transactional(&ledger);
            let server = serve_entries(&layer, &runs).await;
            ledger.plan(trouble);
            // The failed commit is looked for only where the release says that the claim is gone.
            ledger
                .records
                .fail_all(if is_lookup { Operation::Lookup } else { Operation::Release }, Fault::BeforeEffect);

            let first = http.post(&server, "/201", "k", "").await;
            assert_not_committed(&first);
            assert!(!String::from_utf8_lossy(&first.body).contains("Nothing was executed"));
            ledger.records.heal();
            assert_eq!(layer.drain(PATIENCE).await, 0);

            assert_eq!(http.post(&server, "/201", "k", "").await.body, retry_body, "{trouble:?}");
            assert_eq!(ledger.entries(), entries);
            assert_eq!(runs.total(), entries[0][4..].parse::<usize>().unwrap());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rerun_whose_commit_fails_is_still_known_as_a_rerun() {
    for version in VERSIONS {
        let (ledger, http) = (Ledger::new(), Http::new(version));
        let server = serve_cut_short(&transactional(&ledger), End::Error).await;
        try_post(version, &server).await;
        ledger.events();
        ledger.plan(Trouble::FailBefore);

        assert_not_committed(&http.post(&server, "/", "k", "").await);
        assert_eq!(ledger.events(), ["rolled back", "abandoned"]);
        assert_eq!(http.post(&server, "/", "k", "").await.body, "attempt 3");
        assert_eq!(ledger.entries(), ["run 3"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_the_store_refuses_is_given_and_a_retry_is_told_that_it_was_done() {
    for version in VERSIONS {
        let (ledger, runs, http) = (Ledger::new(), Runs::default(), Http::new(version));
        let server = serve_entries(&transactional(&ledger), &runs).await;
        ledger.plan(Trouble::Reject);

        let first = http.post(&server, "/201", "k", "").await;
        let retry = http.post(&server, "/201", "k", "").await;

        assert_eq!((first.status.as_u16(), &first.body[..]), (201, &b"run 1, attempt 1"[..]));
        assert_eq!((retry.status, retry.problem().as_str()), (StatusCode::CONFLICT, "not-replayable"));
        assert_eq!(ledger.events(), ["committed"]);
        assert_eq!(ledger.entries(), ["run 1"]);
        assert_eq!(runs.total(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_cannot_prepare_a_transaction_runs_nothing_and_keeps_the_key_free() {
    let (ledger, runs, http) = (Ledger::new(), Runs::default(), Http::new(Version::Http1));
    let server = serve_entries(&transactional(&ledger), &runs).await;
    ledger.plan(Trouble::Prepare);

    assert_eq!(http.post(&server, "/201", "k", "").await.problem(), "store-unavailable");
    assert_eq!(http.post(&server, "/201", "k", "").await.body, "run 1, attempt 1");
    assert_eq!(ledger.entries(), ["run 1"]);
}

/// Serves charges that write an entry before they wait.
async fn serve_held(layer: &IdempotencyLayer<Ledger>, charges: &Charges, visits: &Visits) -> Server {
    let charges = charges.clone();
    let handler = post(async move |Extension(pen): Extension<Pen>| {
        pen.write("charge");
        charges.charge().await
    });
    serve(visits.watch(Router::new().route("/pay", handler).layer(layer.clone()))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_does_not_keep_the_run_from_committing() {
    for version in VERSIONS {
        let (ledger, charges, visits) = (Ledger::new(), Charges::held(), Visits::default());
        let layer = transactional(&ledger);
        let server = serve_held(&layer, &charges, &visits).await;

        go_away(version, &server, "k", charges.runs.reach(1)).await;
        visits.dropped.reach(1).await;
        assert_eq!(ledger.entries(), [""; 0]);
        charges.let_go(1);

        assert_eq!(layer.drain(PATIENCE).await, 0);
        assert_eq!(ledger.entries(), ["charge"]);
        assert!(Http::new(version).pay(&server, "k").await.is_replay());
        assert_eq!(charges.runs.total(), 1);
    }
}

/// What another process made of a key whose lease it took over.
#[derive(Debug, Clone, Copy)]
enum Successor {
    AtWork,
    Answered,
    Released,
    Mismatch,
}

/// Takes the claim of a run over that goes on, as if its process had been stopped for longer than its lease.
async fn take_over(store: &Ledger, successor: Successor) {
    let (id, lease) = (record("k"), Lease { term: 20 * PATIENCE, unsettled: Duration::MAX });
    let old = store.lookup(&id).await.unwrap().unwrap();
    let over = Lease { term: Duration::ZERO, ..lease };
    assert_eq!(store.renew(&id, old.token, over).await.unwrap(), Fenced::Applied);
    let fingerprint = match successor {
        Successor::Mismatch => Fingerprint::from_bytes([7; 32]),
        _ => old.fingerprint,
    };
    let claim = NewClaim::new(Token::random(), fingerprint, lease).replacing(old.token);
    assert!(matches!(store.claim(&id, &claim).await.unwrap(), Claim::Acquired { attempt: 2 }));
    let done = match successor {
        Successor::AtWork | Successor::Mismatch => return,
        Successor::Answered => {
            let answer = StoredResponse::of(&Response::new("of the successor".into()));
            store.complete(&id, claim.token, &answer, PATIENCE).await
        }
        Successor::Released => store.release(&id, claim.token).await,
    };
    assert_eq!(done.unwrap(), Fenced::Applied);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_lost_its_lease_commits_nothing_and_its_answer_does_not_go_out() {
    for version in VERSIONS {
        for successor in [Successor::AtWork, Successor::Answered, Successor::Released, Successor::Mismatch] {
            for trouble in [None, Some(Trouble::FailBefore)] {
                let (ledger, charges, http) = (Ledger::new(), Charges::held(), Http::new(version));
                let server = serve_held(&transactional(&ledger), &charges, &Visits::default()).await;
                let stolen = async {
                    charges.runs.reach(1).await;
                    take_over(&ledger, successor).await;
                    trouble.into_iter().for_each(|trouble| ledger.plan(trouble));
                    charges.let_go(1);
                };

                let (answer, ()) = tokio::join!(http.pay(&server, "k"), stolen);

                assert_eq!(ledger.entries(), [""; 0], "{successor:?}, {trouble:?}");
                match successor {
                    Successor::AtWork => assert_eq!(answer.problem(), "in-flight"),
                    Successor::Answered => {
                        assert_eq!((answer.is_replay(), &answer.body[..]), (true, &b"of the successor"[..]));
                    }
                    Successor::Released | Successor::Mismatch => assert_not_committed(&answer),
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_starts_after_the_commit() {
    for version in VERSIONS {
        let (ledger, runs, http) = (Ledger::new(), Runs::default(), Http::new(version));
        let server = guard(&transactional(&ledger), &runs, |seen| {
            seen.head.extensions.get::<Pen>().unwrap().write("stream");
            let first = stream::iter([Frame::data(Bytes::from_static(b"data: 1\n\n"))]);
            framed(Response::builder().header("content-type", "text/event-stream"), first.chain(stream::pending()))
        })
        .await;

        let mut response = http.open(keyed(&server, "/", "k").body(Full::default()).unwrap()).await;
        assert_eq!(ledger.entries(), ["stream"]);
        let event = timeout(PATIENCE, response.body_mut().frame()).await.expect("an event in time");
        assert_eq!(event.unwrap().unwrap().into_data().unwrap(), "data: 1\n\n");

        assert_eq!(http.post(&server, "/", "k", "").await.problem(), "not-replayable");
        assert_eq!((ledger.entries().len(), runs.total()), (1, 1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_whose_commit_fails_does_not_start() {
    for version in VERSIONS {
        let (ledger, runs, http) = (Ledger::new(), Runs::default(), Http::new(version));
        let server = guard(&transactional(&ledger), &runs, |seen| {
            seen.head.extensions.get::<Pen>().unwrap().write("stream");
            framed(Response::builder().header("content-type", "text/event-stream"), stream::pending())
        })
        .await;
        ledger.plan(Trouble::FailBefore);

        assert_not_committed(&http.post(&server, "/", "k", "").await);
        assert_eq!(ledger.entries(), [""; 0]);
    }
}
