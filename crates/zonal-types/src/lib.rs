//! Identifiers, attributes, limits, errors and the byte codec that every crate shares.
