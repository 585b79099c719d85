//! What a stranger sends to the services of a cell.

pub mod absurd;
pub mod server;
pub mod valid;

pub use server::{EDGES, Server};
