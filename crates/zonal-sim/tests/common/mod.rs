//! A cell for one program, without faults but those that the program makes.

use std::cell::RefCell;
use std::rc::Rc;
use zonal_client::{Client, Options};
use zonal_sim::Plant;
use zonal_sim::net::SimNet;
use zonal_sim::rng::Rng;
use zonal_sim::workload::SimClient;
use zonal_sim::world::{Size, World};
use zonal_types::{ErrorCode, ZoneId};

/// The server of the only zone's shard.
pub const SHARD: usize = 1;

/// A client that soon gives up.
pub async fn impatient(world: &World) -> Result<SimClient, ErrorCode> {
    patient_for(world, 2_000).await
}

/// A client that gives up after so many ms.
pub async fn patient_for(world: &World, deadline_ms: u64) -> Result<SimClient, ErrorCode> {
    let mut options = Options::new(&world.address_of(0), ZoneId(1), 77);
    (options.attempt_ms, options.deadline_ms) = (500, deadline_ms);
    let name = world.client_name(0);
    let net = SimNet::new(world.network.clone(), &name, Rng::new(2));
    Client::connect(net, options).await
}

/// Runs a program on a cell of three targets to its end.
pub fn run<P: Future<Output = Result<(), ErrorCode>> + 'static>(
    program: impl FnOnce(Rc<World>) -> P + 'static,
) {
    run_on(Size::new(1, 3, 2), program);
}

/// Runs a program on a cell of its own to its end.
pub fn run_on<P: Future<Output = Result<(), ErrorCode>> + 'static>(
    size: Size,
    program: impl FnOnce(Rc<World>) -> P + 'static,
) {
    let world = World::build(size, Plant::None, false, Rng::new(1)).expect("a cell");
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
