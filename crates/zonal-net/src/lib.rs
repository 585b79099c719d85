//! Frames over TCP and Unix sockets: pools, deadlines, handshake, server loop.
