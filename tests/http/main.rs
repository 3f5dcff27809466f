//! The promises of the layer, tested over real sockets: HTTP/1.1 and HTTP/2.

mod support;

mod abandoned;
mod ask;
mod completion;
mod detach;
mod drain;
mod lease;
mod once;
mod outage;
mod renewal;
mod wait;
