//! Requests that a stranger sends to the services of a cell.

pub mod impossible_requests;
pub mod server;
pub mod valid_requests;

pub use server::{EDGES, Server};
