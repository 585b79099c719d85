//! A cell as commands see it: its folder, its processes, its servers.

pub mod connect;
pub mod folder;
pub mod held;
pub mod keyring;
mod machine;
pub mod mounts;
mod named;
pub mod plan;
pub mod points;
pub mod processes;

pub use connect::Cell;
pub use folder::Folder;
pub use held::Held;
pub use named::Named;
