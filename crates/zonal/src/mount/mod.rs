//! Mounting: the command and its background process, the mount(8) helper, and the connection to the
//! client.

pub mod attributes;
mod background;
pub mod client_mount;
pub mod command;
pub mod guard;
pub mod helper;
pub mod options;
pub mod stale_sessions;
pub mod unmount_status;
pub mod zone_detection;
