//! The client: what a mount decides, without a kernel and without sockets.
