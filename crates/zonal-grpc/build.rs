//! Makes the messages and the server's trait of docs/placement.proto, without protoc.

use std::error::Error;

const PROTO: &str = "../../docs/placement.proto";

fn main() -> Result<(), Box<dyn Error>> {
    // By itself cargo looks at this package's files only.
    println!("cargo::rerun-if-changed={PROTO}");
    let files = protox::compile([PROTO], ["../../docs"])?;
    // No client connects by itself: the tests' channel is made by hand.
    tonic_prost_build::configure()
        .build_transport(false)
        .compile_fds(files)?;
    Ok(())
}
