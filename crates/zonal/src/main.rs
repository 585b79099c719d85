//! The `zonal` command.
fn main() {}
