//! The server process: roles, admin HTTP, metrics.
