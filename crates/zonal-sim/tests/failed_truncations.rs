//! Truncations and opens that fail, or are not answered, with gathering, reads and writes beside
//! and after them.

#![expect(
    clippy::expect_used,
    reason = "a test may end where the cell cannot be made"
)]

#[allow(dead_code, reason = "for several test programs")]
mod common;

use common::{SHARD, contents, cut_way_later, impatient, patient_for, run, truncate, written};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use zonal_sim::workload::{open, who};
use zonal_sim::world::World;
use zonal_types::ErrorCode;
use zonal_wire::meta::flags::{O_RDWR, O_TRUNC};

const MIB: usize = 1 << 20;

/// A run is on its way to a target that does not answer, a newer write over it is gathered, and a
/// truncation fails.
async fn older_over_newer(world: Rc<World>) -> Result<(), ErrorCode> {
    let client = impatient(&world).await?;
    let me = world.client_name(0);
    let file = written(&client, &vec![b'a'; 3 * MIB]).await?;
    for target in world.storage_indices() {
        world.network.cut(&me, &world.address_of(target), true);
    }
    // A whole stripe unit leaves at once.
    client
        .begin()
        .write(&file, MIB as u64, &vec![b'o'; MIB], false)
        .await?;
    // The newer write is gathered.
    client
        .begin()
        .write(&file, MIB as u64, &[b'N'; 4096], false)
        .await?;
    let done = truncate(&client, file.ino, 500_000).await;
    assert!(done.is_err());
    let mut seen = vec![0; 4096];
    world.network.heal();
    client.begin().fsync(&file).await?;
    client.begin().read(&file, MIB as u64, &mut seen).await?;
    assert!(
        seen.iter().all(|byte| *byte == b'N'),
        "older bytes: {}",
        seen[0] as char
    );
    Ok(())
}

/// A truncation is not answered, a newer write covers the bytes that it put aside, and another
/// truncation follows while targets do not answer.
async fn older_over_newer_doubted(
    world: Rc<World>,
    after_us: u64,
    seen: Rc<RefCell<Vec<u8>>>,
) -> Result<(), ErrorCode> {
    let client = impatient(&world).await?;
    let (me, shard) = (world.client_name(0), world.address_of(SHARD));
    let file = written(&client, &vec![b'a'; 3 * MIB]).await?;
    client
        .begin()
        .write(&file, MIB as u64, &[b'o'; 4096], false)
        .await?;
    cut_way_later(&world, me.clone(), shard, after_us);
    let first = truncate(&client, file.ino, 500_000).await;
    world.network.heal();
    for target in world.storage_indices() {
        world.network.cut(&me, &world.address_of(target), true);
    }
    client
        .begin()
        .write(&file, MIB as u64, &[b'N'; 4096], false)
        .await?;
    let second = truncate(&client, file.ino, 500_000).await;
    world.network.heal();
    if first.is_ok() || second.is_ok() {
        return Ok(());
    }
    client.begin().fsync(&file).await?;
    let mut bytes = vec![0; 4096];
    let got = client.begin().read(&file, MIB as u64, &mut bytes).await?;
    seen.borrow_mut()
        .push(if got == 0 { b'-' } else { bytes[0] });
    Ok(())
}

/// open(O_TRUNC) is executed and not answered; another open of the same mount writes afterwards.
async fn open_trunc_not_answered(world: Rc<World>) -> Result<(), ErrorCode> {
    let client = impatient(&world).await?;
    let (me, shard) = (world.client_name(0), world.address_of(SHARD));
    let file = written(&client, &vec![b'a'; 3 * MIB]).await?;
    // Replies are lost.
    world.network.cut_way(&shard, &me, true);
    let opened = client
        .begin()
        .open(&who(), file.ino, O_RDWR | O_TRUNC)
        .await;
    assert!(opened.is_err());
    world.network.heal();
    client
        .begin()
        .write(&file, 0, &vec![b'N'; 2 * MIB], false)
        .await?;
    client.begin().fsync(&file).await?;
    let bytes = contents(&client, file.ino).await?;
    assert!(
        bytes.len() >= 2 * MIB && bytes[..2 * MIB].iter().all(|byte| *byte == b'N'),
        "{} bytes",
        bytes.len()
    );
    Ok(())
}

/// A truncation by path of a small file that nobody has open. Another process of the mount opens
/// the file meanwhile.
async fn path_truncate_and_open(
    world: Rc<World>,
    after_us: u64,
    seen: Rc<RefCell<u32>>,
) -> Result<(), ErrorCode> {
    let client = Rc::new(patient_for(&world, 10_000).await?);
    let file = written(&client, b"few").await?;
    let ino = file.ino;
    client.begin().release(ino).await?;
    client.background().keep_house().await;
    drop(file);
    let opened = Rc::new(RefCell::new(None));
    let (clock, second, result) = (world.clock.clone(), client.clone(), opened.clone());
    world.spawn_program(0, async move {
        clock.sleep(after_us * 1_000).await;
        let file = open(&second, ino).await;
        *result.borrow_mut() = Some(file);
    });
    client
        .begin()
        .truncate(&who(), ino, 0, false, false)
        .await?;
    while opened.borrow().is_none() {
        world.clock.sleep(1_000_000).await;
    }
    let file = opened.take().expect("opened")?.file;
    // Both operations are over.
    client
        .begin()
        .write(&file, 0, &vec![b'N'; 2 * MIB], false)
        .await?;
    client.begin().fsync(&file).await?;
    let bytes = contents(&client, ino).await?;
    if bytes != vec![b'N'; 2 * MIB] {
        *seen.borrow_mut() += 1;
    }
    Ok(())
}

/// The size in stat after a truncation that was executed and not answered.
async fn size_between(
    world: Rc<World>,
    after_us: u64,
    seen: Rc<RefCell<Vec<u64>>>,
) -> Result<(), ErrorCode> {
    let client = impatient(&world).await?;
    let (me, shard) = (world.client_name(0), world.address_of(SHARD));
    let file = written(&client, &vec![b'a'; 3 * MIB]).await?;
    client
        .begin()
        .write(&file, MIB as u64, &[b'o'; 4096], false)
        .await?;
    cut_way_later(&world, shard, me, after_us);
    if truncate(&client, file.ino, 500_000).await.is_ok() {
        return Ok(());
    }
    world.network.heal();
    let (attr, _) = client.begin().getattr(file.ino).await?;
    seen.borrow_mut().push(attr.size);
    Ok(())
}

/// Another process reads while a truncation waits for its shard; then the truncation fails.
async fn read_during_a_truncation(world: Rc<World>) -> Result<(), ErrorCode> {
    let client = Rc::new(impatient(&world).await?);
    let (me, shard) = (world.client_name(0), world.address_of(SHARD));
    let file = written(&client, &vec![b'o'; 100_000]).await?;
    client
        .begin()
        .write(&file, 50_000, &[b'a'; 4096], false)
        .await?;
    let mut seen = vec![0; 4096];
    client.begin().read(&file, 50_000, &mut seen).await?;
    assert!(seen.iter().all(|byte| *byte == b'a'));
    world.network.cut(&me, &shard, true);
    let (cutter, ino) = (client.clone(), file.ino);
    let done = Rc::new(Cell::new(None));
    let result = done.clone();
    world.spawn_program(0, async move {
        result.set(Some(truncate(&cutter, ino, 10_000).await));
    });
    world.clock.sleep(100_000_000).await;
    assert_eq!(done.get(), None);
    let got = client.begin().read(&file, 50_000, &mut seen).await?;
    world.network.heal();
    assert!(
        got == 0 || seen[..got].iter().all(|byte| *byte == b'a'),
        "{got} bytes, the first is {}",
        seen[0] as char
    );
    Ok(())
}

#[test]
fn newer_bytes_stay_where_a_truncation_fails() {
    run(older_over_newer);
}

#[test]
fn newer_bytes_stay_where_two_truncations_fail() {
    let seen = Rc::new(RefCell::new(Vec::new()));
    for after_us in (0..1_000).step_by(20) {
        let seen = seen.clone();
        run(move |world| older_over_newer_doubted(world, after_us, seen));
    }
    let seen = String::from_utf8_lossy(&seen.borrow()).into_owned();
    // N: the newer write; -: truncated.
    assert!(!seen.is_empty() && !seen.contains('o'), "{seen}");
}

#[test]
fn bytes_written_after_an_unanswered_truncating_open_stay() {
    run(open_trunc_not_answered);
}

#[test]
fn bytes_written_after_a_truncation_by_name_stay() {
    let seen = Rc::new(RefCell::new(0));
    for after_us in (0..1_000).step_by(10) {
        let seen = seen.clone();
        run(move |world| path_truncate_and_open(world, after_us, seen));
    }
    assert_eq!(*seen.borrow(), 0);
}

#[test]
fn stat_tells_a_size_that_the_file_had() {
    let seen = Rc::new(RefCell::new(Vec::new()));
    for after_us in (0..1_000).step_by(20) {
        let seen = seen.clone();
        run(move |world| size_between(world, after_us, seen));
    }
    let seen = seen.borrow();
    let is_known = |size: &u64| [500_000, 3 * MIB as u64].contains(size);
    assert!(!seen.is_empty() && seen.iter().all(is_known), "{seen:?}");
}

#[test]
fn a_read_beside_a_truncation_has_the_newest_bytes() {
    run(read_during_a_truncation);
}
