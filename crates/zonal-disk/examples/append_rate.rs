//! Measures how many records a second the engine appends, within the log and with checkpoints:
//! `cargo run --release -p zonal-disk --example append_rate DIR`, where DIR does not exist yet.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for a terminal"
)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use zonal_disk::{
    DiskError, Engine, EngineConfig, LogRoom, StoreIdentity, StoreKind, spawn_checkpointer,
};
use zonal_types::KvChange;

fn main() -> Result<(), DiskError> {
    let Some(dir) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: append_rate DIR");
        std::process::exit(2);
    };
    let identity = StoreIdentity {
        cell: [7; 16],
        kind: StoreKind::Shard,
        id: 1,
    };
    let config = EngineConfig::default();
    Engine::format(&dir, identity, &config)?;
    let engine = Engine::open(&dir, &identity, config, &mut |_, _, _| true)?;
    let engine = Arc::new(engine);
    let job = Box::new(|engine: &Engine| engine.checkpoint(&mut || Ok(())));
    let checkpointer = spawn_checkpointer(&engine, job, Box::new(|error| eprintln!("{error}")))?;
    for (what, count) in [
        ("within the log", 20_000_u64),
        ("with checkpoints", 300_000),
    ] {
        let begin = Instant::now();
        for number in 0..count {
            let changes = vec![KvChange::put(number.to_be_bytes().to_vec(), vec![1; 280])];
            engine.append_with(changes, b"", LogRoom::Normal)?;
        }
        let took = begin.elapsed().max(Duration::from_nanos(1));
        println!("{what}: {:.0} appends/s", count as f64 / took.as_secs_f64());
        engine.checkpoint(&mut || Ok(()))?;
    }
    drop(checkpointer);
    Ok(())
}
