//! Mounting: the command and its background process, the mount(8) helper, and the seam to the client.

pub mod attributes;
pub mod client_mount;
pub mod command;
pub mod dead;
pub mod helper;
