//! A cell for one program, without faults except those that the program makes.

pub mod directory_listing;
pub mod message_counts;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use zonal_client::{Client, ClientOptions, File};
use zonal_sim::Plant;
use zonal_sim::net::SimNet;
use zonal_sim::rng::SimRng;
use zonal_sim::workload::{SimClient, create, make_dir, open, who};
use zonal_sim::world::{CellSize, World};
use zonal_types::{ClientId, ErrorCode, Ino, ZoneId};

/// The server of the only zone's shard.
pub const SHARD: usize = 1;

/// Connects a client that soon gives up.
pub async fn impatient(world: &World) -> Result<SimClient, ErrorCode> {
    patient_for(world, 2_000).await
}

/// Connects a client that gives up after `deadline_ms`.
pub async fn patient_for(world: &World, deadline_ms: u64) -> Result<SimClient, ErrorCode> {
    patient_at(world, 0, deadline_ms).await
}

/// The same, as another process.
pub async fn patient_at(
    world: &World,
    index: usize,
    deadline_ms: u64,
) -> Result<SimClient, ErrorCode> {
    let mut options =
        ClientOptions::new(&world.address_of(0), ZoneId(1), ClientId(77 + index as u64));
    (options.attempt_ms, options.deadline_ms) = (500, deadline_ms);
    let name = world.client_name(index);
    let net = SimNet::new(world.network.clone(), &name, SimRng::new(2 + index as u64));
    Client::connect(net, options).await
}

/// Reads a whole file, of at most 8 MiB, by a new open.
///
/// # Errors
/// An error of the cell.
pub async fn contents(client: &SimClient, ino: Ino) -> Result<Vec<u8>, ErrorCode> {
    let seen = open(client, ino).await?;
    let mut bytes = vec![0xee; 8 << 20];
    let got = client.begin().read(&seen.file, 0, &mut bytes).await?;
    bytes.truncate(got);
    client.begin().release(ino).await?;
    Ok(bytes)
}

/// Sets the size of an open file.
///
/// # Errors
/// An error of the cell.
pub async fn truncate(client: &SimClient, ino: Ino, size: u64) -> Result<(), ErrorCode> {
    let done = client
        .begin()
        .truncate(&who(), ino, size, true, false)
        .await;
    done.map(|_attr| ())
}

/// Makes a durable file with these bytes.
///
/// # Errors
/// An error of the cell.
pub async fn written(client: &SimClient, bytes: &[u8]) -> Result<Arc<File<SimNet>>, ErrorCode> {
    let home = make_dir(client, Ino::ROOT, "home").await?;
    let file = create(client, home, "f", true).await?.file;
    client.begin().write(&file, 0, bytes, false).await?;
    client.begin().fsync(&file).await?;
    Ok(file)
}

/// Cuts one way, `after_us` microseconds from now.
pub fn cut_way_later(world: &Rc<World>, from: String, to: String, after_us: u64) {
    let (clock, network) = (world.clock.clone(), world.network.clone());
    world.spawn_program(0, async move {
        clock.sleep(after_us * 1_000).await;
        network.cut_way(&from, &to, true);
    });
}

/// Runs a program to its end, on a cell with three targets.
pub fn run<P: Future<Output = Result<(), ErrorCode>> + 'static>(
    program: impl FnOnce(Rc<World>) -> P + 'static,
) {
    run_on(CellSize::new(1, 3, 2), program);
}

/// Runs a program to its end, on a cell of its own.
pub fn run_on<P: Future<Output = Result<(), ErrorCode>> + 'static>(
    size: CellSize,
    program: impl FnOnce(Rc<World>) -> P + 'static,
) {
    let world = World::build(size, Plant::None, false, SimRng::new(1)).expect("a cell");
    let outcome = Rc::new(RefCell::new(None));
    let (inner, result) = (world.clone(), outcome.clone());
    world.spawn_program(0, async move {
        let done = program(inner).await;
        *result.borrow_mut() = Some(done);
    });
    let limit = world.clock.now().plus_ms(600_000);
    assert!(
        world.clock.run(limit, || outcome.borrow().is_some()),
        "the program did not end"
    );
    assert_eq!(outcome.take(), Some(Ok(())));
}
