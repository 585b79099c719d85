//! The FUSE session: the kernel's protocol, mounting, notifications.
