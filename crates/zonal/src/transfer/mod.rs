//! Objects of a target: lists them, exports them to a stream, and imports a stream into a target.

mod export;
pub mod format;
mod import;
mod object_paths;
mod running_target;
mod source;
mod stopped_target;

pub use export::{ExportSummary, export};
pub use import::{ImportSummary, import};
pub use object_paths::ObjectPaths;
pub use running_target::RunningTarget;
pub use source::ObjectSource;
pub use stopped_target::StoppedTarget;
