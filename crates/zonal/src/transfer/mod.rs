//! Objects of a target: listed, written to a stream, and out of one into another target.

mod export;
pub mod format;
mod import;
mod names;
mod remote;
mod source;
mod stopped;

pub use export::{Exported, export};
pub use import::import;
pub use names::Names;
pub use remote::Remote;
pub use source::Source;
pub use stopped::Stopped;
