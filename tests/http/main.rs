//! The promises of the layer, tested over real sockets: HTTP/1.1 and HTTP/2.

mod support;
mod wire;

mod abandoned;
mod ask;
mod backlog;
mod bad_input;
mod completion;
mod cut_short;
mod detach;
mod drain;
mod durations;
mod framing;
mod give_back;
mod late_claim;
mod late_effects;
mod layering;
mod lease;
mod limits;
mod marker;
mod max_runs;
mod once;
mod outage;
mod panicking_store;
mod predicates;
mod raw;
mod readiness;
mod renewal;
mod replay;
mod reruns;
mod runtimes;
mod settling;
mod streams;
mod tenants;
mod trailers;
mod wait;
