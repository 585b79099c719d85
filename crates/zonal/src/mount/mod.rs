//! Mounting: the command and its background process, the mount(8) helper, and the seam to the
//! client.

pub mod attributes;
mod background;
pub mod client_mount;
pub mod command;
pub mod dead;
pub mod farewell;
pub mod guard;
pub mod helper;
pub mod near;
pub mod options;
