//! A cell as commands see it: its folder, its processes, its servers.

mod cell_locator;
pub mod connection;
pub mod folder;
pub mod keyring;
mod machine_folders;
pub mod mount_records;
pub mod mount_table;
pub mod node_states;
pub mod node_status;
pub mod plan;
pub mod process_handle;
pub mod processes;

pub use cell_locator::CellLocator;
pub use connection::CellHandle;
pub use folder::CellFolder;
pub use process_handle::ProcessHandle;
