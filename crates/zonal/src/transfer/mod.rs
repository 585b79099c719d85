//! Objects of a target: listed, written to a stream, and out of one into another target.

mod export;
pub mod format;
mod import;
mod object_paths;
mod running_target;
mod source;
mod stopped_target;

pub use export::{ExportSummary, export};
pub use import::import;
pub use object_paths::ObjectPaths;
pub use running_target::RunningTarget;
pub use source::ObjectSource;
pub use stopped_target::StoppedTarget;
