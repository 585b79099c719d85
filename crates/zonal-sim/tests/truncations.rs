//! Truncations by one client while another writes: each byte is there or was truncated, and no
//! bytes turn into zeros.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![expect(
    clippy::expect_used,
    reason = "a test may end where the cell cannot be made"
)]

#[allow(dead_code, reason = "for several test programs")]
mod common;

use common::{SHARD, contents, cut_way_later, impatient, patient_at, run, truncate, written};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use zonal_client::File;
use zonal_sim::net::SimNet;
use zonal_sim::rng::SimRng;
use zonal_sim::workload::kernel_cache::KernelCache;
use zonal_sim::workload::{SimClient, create, make_dir, open, who};
use zonal_sim::world::World;
use zonal_types::{ErrorCode, Ino};
use zonal_wire::meta::flags::{O_RDWR, O_TRUNC};

const MIB: usize = 1 << 20;

async fn two(world: &World) -> Result<(Rc<SimClient>, Rc<SimClient>, Ino), ErrorCode> {
    let one = Rc::new(world.connect(0, SimRng::new(2)).await?);
    let two = Rc::new(world.connect(1, SimRng::new(3)).await?);
    let home = make_dir(&one, Ino::ROOT, "home").await?;
    Ok((one, two, home))
}

/// The outcome of an append, once it is known.
type Appended = Rc<RefCell<Option<Result<u64, ErrorCode>>>>;

/// Cuts the first client off from all targets, or mends that.
fn cut_targets(world: &World, is_cut: bool) {
    let me = world.client_name(0);
    for target in world.storage_indices() {
        world.network.cut(&me, &world.address_of(target), is_cut);
    }
}

/// The first client appends 200,000 bytes, beside the program.
fn begin_append(world: &Rc<World>, client: &Rc<SimClient>, file: &Arc<File<SimNet>>) -> Appended {
    let appended = Appended::default();
    let (writer, result, file) = (client.clone(), appended.clone(), file.clone());
    world.spawn_program(0, async move {
        let done = writer.begin().append(&file, &[b'N'; 200_000], false).await;
        *result.borrow_mut() = Some(done);
    });
    appended
}

/// Waits until the append has ended, at most 30 s.
async fn ended(world: &World, appended: &Appended) {
    for _ in 0..300 {
        world.clock.sleep(100_000_000).await;
        if appended.borrow().is_some() {
            break;
        }
    }
}

async fn truncated_before_the_writer_tells(world: Rc<World>) -> Result<(), ErrorCode> {
    let (one, two, home) = two(&world).await?;
    for (index, length) in [3_000, 200_000, 3 * MIB, 6 * MIB].into_iter().enumerate() {
        let file = create(&one, home, &format!("f{index}"), true).await?.file;
        one.begin()
            .write(&file, 0, &vec![b'o'; length], false)
            .await?;
        one.begin().fsync(&file).await?;
        open(&two, file.ino).await?;
        one.begin()
            .write(&file, 0, &vec![b'N'; length], false)
            .await?;
        truncate(&two, file.ino, 0).await?;
        one.begin().fsync(&file).await?;
        for client in [&one, &two] {
            let bytes = contents(client, file.ino).await?;
            assert!(bytes.iter().all(|byte| *byte == b'N'), "{length} bytes");
        }
    }
    Ok(())
}

async fn truncated_where_the_writer_knows_the_file_of_before(
    world: Rc<World>,
) -> Result<(), ErrorCode> {
    let (one, two, home) = two(&world).await?;
    // All bytes are at the shard, so no target hears of the truncation by itself.
    let file = create(&one, home, "f", true).await?.file;
    one.begin().write(&file, 0, b"few", false).await?;
    one.begin().fsync(&file).await?;
    truncate(&two, file.ino, 1).await?;
    let bytes = vec![b'N'; 2 * MIB];
    one.begin().write(&file, 0, &bytes, false).await?;
    one.begin().fsync(&file).await?;
    assert_eq!(contents(&two, file.ino).await?, bytes);
    truncate(&two, file.ino, 2 * MIB as u64 + 10).await?;
    assert_eq!(contents(&two, file.ino).await?[..2 * MIB], bytes);
    Ok(())
}

async fn truncated_under_an_append(world: Rc<World>) -> Result<(), ErrorCode> {
    let (one, two, home) = two(&world).await?;
    for first in [3_000, 100_000] {
        let file = create(&one, home, &format!("f{first}"), true).await?.file;
        one.begin()
            .write(&file, 0, &vec![b'o'; first], false)
            .await?;
        one.begin().fsync(&file).await?;
        cut_targets(&world, true);
        let appended = begin_append(&world, &one, &file);
        world.clock.sleep(500_000_000).await;
        truncate(&two, file.ino, 0).await?;
        world.network.heal();
        ended(&world, &appended).await;
        assert_eq!(appended.take(), Some(Ok(0)), "at the end of then");
        one.begin().fsync(&file).await?;
        let bytes = contents(&two, file.ino).await?;
        assert!(bytes == [b'N'; 200_000], "{first}: {} bytes", bytes.len());
        // Bytes of the first attempt must not lie behind the append.
        truncate(&two, file.ino, 600_000).await?;
        let bytes = contents(&two, file.ino).await?;
        assert!(bytes[200_000..].iter().all(|byte| *byte == 0), "{first}");
    }
    Ok(())
}

/// A client writes an append to targets and cannot report it to the shard. Another client truncates
/// the file, and the shard is restarted.
async fn truncated_under_an_append_and_restarted(world: Rc<World>) -> Result<(), ErrorCode> {
    let (one, two, home) = two(&world).await?;
    let (me, shard) = (world.client_name(0), world.address_of(SHARD));
    for (first, left) in [(3_000, 0), (100_000, 0), (100_000, 40_000)] {
        let file = create(&one, home, &format!("f{first}-{left}"), true)
            .await?
            .file;
        one.begin()
            .write(&file, 0, &vec![b'o'; first], false)
            .await?;
        one.begin().fsync(&file).await?;
        open(&two, file.ino).await?;
        let cut_targets = |is_cut| cut_targets(&world, is_cut);
        cut_targets(true);
        let appended = begin_append(&world, &one, &file);
        world.clock.sleep(500_000_000).await;
        world.network.cut(&me, &shard, true);
        cut_targets(false);
        // The append has its place, and its client writes there while it may.
        world.clock.sleep(4_000_000_000).await;
        truncate(&two, file.ino, left as u64).await?;
        assert_eq!(*appended.borrow(), None, "the shard does not know it");
        world.kill(SHARD);
        world.start(SHARD);
        world.network.heal();
        ended(&world, &appended).await;
        assert_eq!(appended.take(), Some(Ok(left as u64)), "at the end of then");
        one.begin().fsync(&file).await?;
        let bytes = contents(&two, file.ino).await?;
        let (old, new) = bytes.split_at(left);
        assert!(old.iter().all(|byte| *byte == b'o'), "{first}");
        assert!(new == [b'N'; 200_000], "{first}: {} bytes", new.len());
    }
    Ok(())
}

/// An append has its place. Another client writes behind it, and perhaps truncates the file there.
/// The shard is restarted, perhaps.
async fn grown_past_an_append(world: Rc<World>) -> Result<(), ErrorCode> {
    let (one, two, home) = two(&world).await?;
    let (me, shard) = (world.client_name(0), world.address_of(SHARD));
    let cases = [
        (3_000, 2_000, false, false),
        (3_000, 0, true, true),
        (100_000, 0, true, true),
        (100_000, 250_000, false, true),
        (100_000, 250_000, false, false),
        (100_000, 250_000, true, true),
        (100_000, 250_000, true, false),
    ];
    for (first, size, restarts, is_written_before) in cases {
        let what = format!("f{first}-{size}-{restarts}-{is_written_before}");
        let file = create(&one, home, &what, true).await?.file;
        one.begin()
            .write(&file, 0, &vec![b'o'; first], false)
            .await?;
        one.begin().fsync(&file).await?;
        let other = open(&two, file.ino).await?.file;
        let cut_targets = |is_cut| cut_targets(&world, is_cut);
        cut_targets(true);
        let appended = begin_append(&world, &one, &file);
        world.clock.sleep(500_000_000).await;
        if is_written_before {
            world.network.cut(&me, &shard, true);
            cut_targets(false);
            world.clock.sleep(2_000_000_000).await;
        }
        two.begin()
            .write(&other, 260_000, &[b'T'; 90_000], false)
            .await?;
        two.begin().fsync(&other).await?;
        // A truncation behind the beginning of the append, or behind the other client's bytes.
        let size = match size {
            0 => 350_000,
            size if size < first as u64 => first as u64 + 500,
            size => size,
        };
        if size > 0 {
            truncate(&two, file.ino, size).await?;
        }
        two.begin().write(&other, 4_000, b"later", false).await?;
        two.begin().fsync(&other).await?;
        assert_eq!(*appended.borrow(), None, "the shard does not know it");
        if restarts {
            world.kill(SHARD);
            world.start(SHARD);
        }
        world.network.heal();
        ended(&world, &appended).await;
        assert_eq!(appended.take(), Some(Ok(first as u64)), "{what}");
        one.begin().fsync(&file).await?;
        let bytes = contents(&two, file.ino).await?;
        assert_eq!(bytes.len() as u64, size.max(4_005), "{what}");
        let end = (first + 200_000).min(size as usize);
        let mut places = first..end;
        let differs = places.find(|at| match at {
            4_000..4_005 => false,
            // The order of the two is open.
            260_000.. => !b"NT".contains(&bytes[*at]),
            _ => bytes[*at] != b'N',
        });
        assert_eq!(differs, None, "{what}");
        let is_new = |byte: &u8| *byte == b'N';
        assert!(!bytes[end..].iter().any(is_new), "{what}: not truncated");
        two.begin().release(file.ino).await?;
    }
    Ok(())
}

/// From some moment on the shard does not answer a client that may be truncating a file with its
/// own writes. Returns whether the file was truncated.
async fn truncation_that_is_not_answered(
    world: Rc<World>,
    size: usize,
    after_us: u64,
) -> Result<bool, ErrorCode> {
    let client = impatient(&world).await?;
    let (me, shard) = (world.client_name(0), world.address_of(SHARD));
    let mut wanted = vec![b'a'; 500_000];
    let file = written(&client, &wanted).await?;
    wanted[400_000..400_050].fill(b'b');
    client
        .begin()
        .write(&file, 400_000, &[b'b'; 50], false)
        .await?;
    cut_way_later(&world, shard, me, after_us);
    let done = truncate(&client, file.ino, size as u64).await;
    world.network.heal();
    // Written after the truncation, so these bytes must be there in any case.
    client.begin().write(&file, 90, b"after", false).await?;
    wanted[90..95].copy_from_slice(b"after");
    let mut seen = vec![0; 500_000];
    let got = client.begin().read(&file, 0, &mut seen).await?;
    if got == size {
        wanted.truncate(size);
    }
    assert!(done.is_err() || got == size);
    assert!(
        seen[..got] == wanted,
        "{got} bytes are read through its open"
    );
    client.begin().fsync(&file).await?;
    let bytes = contents(&client, file.ino).await?;
    assert!(bytes == wanted, "{got} bytes, and now {}", bytes.len());
    Ok(done.is_err() && got == size)
}

/// A target does not hear of a truncation, or of one by an open: both clients see the shard's
/// state.
async fn truncation_that_a_target_does_not_hear(
    world: Rc<World>,
    size: u64,
    by_open: bool,
    target: usize,
) -> Result<(), ErrorCode> {
    let client = impatient(&world).await?;
    let me = world.client_name(0);
    let file = written(&client, &vec![b'a'; 3 * MIB]).await?;
    if !by_open {
        // Behind the new end, in the second column.
        client
            .begin()
            .write(&file, MIB as u64, b"gathered", false)
            .await?;
    }
    let target = world.storage_indices()[target];
    world.network.cut(&me, &world.address_of(target), true);
    let done = if by_open {
        let opened = client
            .begin()
            .open(&who(), file.ino, O_RDWR | O_TRUNC)
            .await;
        opened.map(drop)
    } else {
        truncate(&client, file.ino, size).await
    };
    assert!(done.is_err(), "not all have heard of it");
    world.network.heal();
    let (attr, _ms) = client.begin().getattr(file.ino).await?;
    assert_eq!(attr.size, size, "the shard has truncated it");
    client.begin().fsync(&file).await?;
    let other = world.connect(1, SimRng::new(3)).await?;
    let wanted = vec![b'a'; size as usize];
    for client in [&client, &other] {
        let bytes = contents(client, file.ino).await?;
        assert!(bytes == wanted, "{} bytes, {size} wanted", bytes.len());
    }
    Ok(())
}

/// A client that truncates is killed before a target hears of it. Later writes of another client
/// that has the file open must stay.
async fn truncated_by_a_client_that_dies(
    world: Rc<World>,
    restarts: bool,
) -> Result<(), ErrorCode> {
    let two = Rc::new(world.connect(0, SimRng::new(2)).await?);
    world.serve_client(0, &two, &Rc::new(KernelCache::default()));
    let one = patient_at(&world, 1, 8_000).await?;
    let home = make_dir(&two, Ino::ROOT, "home").await?;
    let file = create(&two, home, "f", true).await?.file;
    two.begin()
        .write(&file, 0, &vec![b'o'; 3 * MIB], false)
        .await?;
    two.begin().fsync(&file).await?;
    for target in world.storage_indices() {
        let target = world.address_of(target);
        world.network.cut(&world.client_name(1), &target, true);
    }
    // The other client does not hear of the shard before it has changed.
    let (me, shard) = (world.client_name(0), world.address_of(SHARD));
    world.network.cut(&me, &shard, restarts);
    assert!(truncate(&one, file.ino, 5_000).await.is_err());
    world.kill_client(1);
    world.network.heal();
    if restarts {
        world.kill(SHARD);
        world.start(SHARD);
    }
    // A poll whose reply is lost ends by its deadline.
    world.clock.sleep(25_000_000_000).await;
    let at = MIB + 7_000;
    two.begin().write(&file, at as u64, b"later", false).await?;
    two.begin().fsync(&file).await?;
    let other = world.connect(1, SimRng::new(9)).await?;
    let mut wanted = vec![0; at + 5];
    wanted[..5_000].fill(b'o');
    wanted[at..].copy_from_slice(b"later");
    for client in [&*two, &other] {
        let bytes = contents(client, file.ino).await?;
        let differs = (0..wanted.len()).find(|at| bytes.get(*at) != wanted.get(*at));
        assert_eq!((bytes.len(), differs), (wanted.len(), None));
    }
    Ok(())
}

#[test]
fn writes_after_a_truncation_stay_though_its_client_has_died() {
    run(|world| truncated_by_a_client_that_dies(world, false));
    run(|world| truncated_by_a_client_that_dies(world, true));
}

async fn append_that_fails(world: Rc<World>) -> Result<(), ErrorCode> {
    let client = impatient(&world).await?;
    let me = world.client_name(0);
    let home = make_dir(&client, Ino::ROOT, "home").await?;
    for target in world.storage_indices() {
        let file = create(&client, home, &format!("f{target}"), true)
            .await?
            .file;
        client.begin().append(&file, &[b'a'; 70_000], false).await?;
        world.network.cut(&me, &world.address_of(target), true);
        let appended = client.begin().append(&file, &[b'B'; 6 * MIB], false).await;
        assert!(appended.is_err());
        world.network.heal();
        // Later writes are not taken for those that failed.
        client
            .begin()
            .write(&file, 200_000, &[b'c'; 100_000], false)
            .await?;
        client.begin().fsync(&file).await?;
        truncate(&client, file.ino, 5 * MIB as u64).await?;
        let bytes = contents(&client, file.ino).await?;
        assert!(bytes[..70_000].iter().all(|byte| *byte == b'a'));
        assert!(bytes[70_000..200_000].iter().all(|byte| *byte == 0));
        assert!(bytes[200_000..300_000].iter().all(|byte| *byte == b'c'));
        assert!(bytes[300_000..].iter().all(|byte| *byte == 0));
    }
    Ok(())
}

#[test]
fn an_append_that_fails_leaves_nothing_behind_the_end() {
    run(append_that_fails);
}

#[test]
fn bytes_that_another_client_truncated_before_their_report_do_not_come_back_as_zeros() {
    run(truncated_before_the_writer_tells);
}

#[test]
fn a_writer_that_does_not_know_of_a_truncation_loses_nothing_it_writes_after_it() {
    run(truncated_where_the_writer_knows_the_file_of_before);
}

#[test]
fn an_append_that_is_under_way_when_the_file_is_truncated_goes_to_the_new_end() {
    run(truncated_under_an_append);
}

#[test]
fn an_append_that_is_under_way_when_the_file_is_truncated_and_the_shard_restarted_goes_to_the_new_end()
 {
    run(truncated_under_an_append_and_restarted);
}

#[test]
fn an_append_keeps_its_place_where_the_file_grew_past_it_and_was_truncated_there() {
    run(grown_past_an_append);
}

#[test]
fn a_truncation_that_fails_is_done_or_drops_no_bytes() {
    for size in [100, 300_000] {
        let truncations = Rc::new(Cell::new(0));
        for after_us in (0..1_000).step_by(20) {
            let truncations = truncations.clone();
            run(move |world| async move {
                let is_truncated = truncation_that_is_not_answered(world, size, after_us).await?;
                truncations.set(truncations.get() + u32::from(is_truncated));
                Ok(())
            });
        }
        let truncations = truncations.get();
        assert!(
            (1..50).contains(&truncations),
            "done without an answer: {truncations}"
        );
    }
}

#[test]
fn a_truncation_that_a_target_does_not_hear_of_is_done() {
    for target in 0..3 {
        for (size, by_open) in [(0, false), (100_000, false), (0, true)] {
            run(move |world| truncation_that_a_target_does_not_hear(world, size, by_open, target));
        }
    }
}
