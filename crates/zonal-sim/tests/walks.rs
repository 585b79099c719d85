//! Walks through trees: directories that are listed one after the other come together, and never older than if each had been asked for.

#![expect(
    clippy::expect_used,
    reason = "a test may end where the cell cannot be made"
)]

#[allow(dead_code, reason = "for several test programs")]
mod common;

use common::counted::{Counter, on_a_cell};
use common::run_on;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use zonal_client::directories::Part;
use zonal_sim::net::LinkFaults;
use zonal_sim::rng::Rng;
use zonal_sim::workload::cached::KernelCache;
use zonal_sim::workload::{SimClient, create, lookup, make_dir, name, who};
use zonal_sim::world::{Size, World};
use zonal_types::{Attr, ErrorCode, Ino, ShardId};
use zonal_wire::AttrChange;

/// Past the time for which nothing is listed ahead behind a change.
const QUIET_NS: u64 = 600_000_000;

/// Names and modes, as a kernel hears of them, in parts of 200.
async fn listed(client: &SimClient, dir: Ino) -> Result<BTreeMap<String, (u32, Ino)>, ErrorCode> {
    let mut found = BTreeMap::new();
    let mut cookie = 0;
    loop {
        let part = Part::new(cookie, 200, true);
        let (entries, end) = client.readdir(&who(), dir, part).await?;
        for item in &entries {
            let mode = item.entry.attr.map_or(0, |attr: Attr| attr.mode);
            found.insert(item.name.to_string(), (mode & 0o777, item.entry.ino));
            cookie = item.cookie;
        }
        if end {
            return Ok(found);
        }
    }
}

/// A directory with directories of two files each, which its maker has forgotten.
async fn tree(cell: &Counter, dirs: usize) -> Result<(Ino, Vec<Ino>), ErrorCode> {
    let client = &cell.client;
    client.poll_events(&client.link_to(ShardId(1)), 0).await?;
    let top = make_dir(client, cell.home, &format!("top{dirs}")).await?;
    let mut made = Vec::new();
    for number in 0..dirs {
        let dir = make_dir(client, top, &format!("d{number}")).await?;
        for file in ["a", "b"] {
            let ino = create(client, dir, file, true).await?.file.ino;
            client.release(ino).await?;
        }
        made.push(dir);
    }
    cell.world.clock.sleep(QUIET_NS).await;
    Ok((top, made))
}

async fn chmod(client: &SimClient, ino: Ino, mode: u32) -> Result<(), ErrorCode> {
    let change = AttrChange {
        mode: Some(mode),
        ..AttrChange::default()
    };
    client.setattr(&who(), ino, change).await.map(|_attr| ())
}

/// The directories in one, in the order in which its shard tells them.
async fn told(client: &SimClient, top: Ino) -> Result<Vec<(String, Ino)>, ErrorCode> {
    let part = Part::new(0, 1000, true);
    let (entries, end) = client.readdir(&who(), top, part).await?;
    assert!(end);
    let dirs = entries.into_iter();
    let dirs = dirs.map(|item| (item.name.to_string(), item.entry.ino));
    Ok(dirs.collect())
}

/// How many round trips a walk through these takes.
async fn walked(cell: &Counter, dirs: &[(String, Ino)]) -> Result<u64, ErrorCode> {
    let mut trips = 0;
    for (_name, dir) in dirs {
        trips += cell.count(listed(&cell.client, *dir)).await?.1;
    }
    Ok(trips)
}

#[test]
fn a_walk_takes_one_round_trip_for_many_directories() {
    on_a_cell(|cell| async move {
        // More than are kept.
        for (count, trips) in [(40, 3), (480, 30)] {
            let (top, _dirs) = tree(&cell, count).await?;
            let mut dirs = told(&cell.client, top).await?;
            assert_eq!(walked(&cell, &dirs).await?, trips, "as they are told");
            dirs.sort();
            assert_eq!(told(&cell.client, top).await?.len(), count);
            let by_name = walked(&cell, &dirs).await?;
            // In which order they are listed is seen from the second one.
            assert!((trips..trips + 3).contains(&by_name), "{by_name} by name");
        }
        Ok(())
    });
}

#[test]
fn empty_directories_are_listed_ahead() {
    on_a_cell(|cell| async move {
        let client = &cell.client;
        client.poll_events(&client.link_to(ShardId(1)), 0).await?;
        let top = make_dir(client, cell.home, "empty").await?;
        for number in 0..240 {
            make_dir(client, top, &format!("d{number}")).await?;
        }
        cell.world.clock.sleep(QUIET_NS).await;
        let dirs = told(client, top).await?;
        assert_eq!(walked(&cell, &dirs).await?, 15);
        Ok(())
    });
}

#[test]
fn who_reads_files_walks_as_fast() {
    on_a_cell(|cell| async move {
        let (top, _dirs) = tree(&cell, 40).await?;
        let client = &cell.client;
        let dirs = told(client, top).await?;
        let (mut trips, mut files) = (0, Vec::new());
        for (_name, dir) in &dirs {
            let (found, more) = cell.count(listed(client, *dir)).await?;
            trips += more;
            let file = found["a"].1;
            client.touch(file).await?;
            files.push(file);
            cell.world.clock.sleep(10_000_000).await;
            if files.len().is_multiple_of(10) {
                client.keep_house().await;
            }
        }
        assert_eq!(trips, 3);
        // One that was told is in no listing from before.
        cell.world.clock.sleep(QUIET_NS).await;
        told(client, top).await?;
        listed(client, dirs[0].1).await?;
        cell.world.clock.sleep(2_000_000_000).await;
        client.touch(files[1]).await?;
        client.keep_house().await;
        let asked = client.getattr(files[1]).await?.0.atime;
        let part = Part::new(0, 200, true);
        let (entries, _end) = client.readdir(&who(), dirs[1].1, part).await?;
        let mut attrs = entries.iter().filter_map(|item| item.entry.attr);
        let listed = attrs.find(|attr| attr.ino == files[1]);
        assert_eq!(listed.expect("the file").atime, asked);
        Ok(())
    });
}

/// Two clients that hear of one another's changes, and four directories with something in each that `fill` makes.
async fn two<F: Future<Output = Result<Ino, ErrorCode>>>(
    world: &Rc<World>,
    fill: impl Fn(Rc<SimClient>, Ino, Ino) -> F,
) -> Result<(Rc<SimClient>, Rc<SimClient>, Ino, Vec<(Ino, Ino)>), ErrorCode> {
    let writer = Rc::new(world.connect(0, Rng::new(2)).await?);
    let walker = Rc::new(world.connect(1, Rng::new(3)).await?);
    for (index, client) in [&writer, &walker].into_iter().enumerate() {
        world.serve_client(index, client, &Rc::new(KernelCache::default()));
    }
    let home = make_dir(&writer, Ino::ROOT, "home").await?;
    let top = make_dir(&writer, home, "top").await?;
    let mut dirs = Vec::new();
    for number in 0..4 {
        let dir = make_dir(&writer, top, &format!("d{number}")).await?;
        let ino = fill(writer.clone(), home, dir).await?;
        dirs.push((dir, ino));
    }
    world.clock.sleep(7_000_000_000).await;
    Ok((writer, walker, top, dirs))
}

async fn with_two_names(world: Rc<World>) -> Result<(), ErrorCode> {
    let (writer, walker, top, dirs) = two(&world, |client, home, dir| async move {
        let ino = create(&client, dir, "f", true).await?.file.ino;
        client.release(ino).await?;
        let other = name(&format!("l{}", dir.0))?;
        client.hard_link(&who(), ino, home, other).await?;
        Ok(ino)
    })
    .await?;
    listed(&walker, top).await?;
    listed(&walker, dirs[0].0).await?;
    for (_dir, ino) in &dirs {
        chmod(&writer, *ino, 0o641).await?;
    }
    world.clock.sleep(1_000_000_000).await;
    for (dir, _ino) in &dirs[1..] {
        assert_eq!(listed(&walker, *dir).await?["f"].0, 0o641);
    }
    Ok(())
}

#[test]
fn a_file_that_lies_under_no_lease_is_asked_for() {
    run_on(Size::new(1, 1, 2), with_two_names);
}

async fn while_a_change_waits(world: Rc<World>) -> Result<(), ErrorCode> {
    let third = world.connect(2, Rng::new(4)).await?;
    let (writer, walker, top, dirs) = two(&world, |client, _home, dir| async move {
        make_dir(&client, dir, "s").await
    })
    .await?;
    // It looks, and hears nothing any more: the change waits until its lease is over.
    let sub = dirs[1].1;
    third.getattr(sub).await?;
    let done = Rc::new(Cell::new(false));
    let over = done.clone();
    world.spawn_program(0, async move {
        chmod(&writer, sub, 0o705).await.expect("a change");
        over.set(true);
    });
    world.clock.sleep(4_000_000_000).await;
    listed(&walker, top).await?;
    listed(&walker, dirs[0].0).await?;
    world.clock.sleep(2_500_000_000).await;
    assert!(done.get());
    assert_eq!(listed(&walker, dirs[1].0).await?["s"].0, 0o705);
    Ok(())
}

#[test]
fn a_directory_in_which_a_change_waits_is_asked_for() {
    run_on(Size::new(1, 1, 3), while_a_change_waits);
}

#[test]
fn who_looks_at_one_directory_asks_for_one() {
    on_a_cell(|cell| async move {
        let (top, dirs) = tree(&cell, 20).await?;
        let client = &cell.client;
        listed(client, top).await?;
        cell.world.clock.sleep(2_000_000_000).await;
        listed(client, dirs[3]).await?;
        assert_eq!(cell.count(listed(client, dirs[4])).await?.1, 1, "a second");
        assert_eq!(cell.count(listed(client, dirs[5])).await?.1, 0, "a walk");
        assert_eq!(cell.count(listed(client, dirs[5])).await?.1, 1, "again");
        cell.world.clock.sleep(40_000_000_000).await;
        listed(client, dirs[7]).await?;
        assert_eq!(cell.count(listed(client, dirs[8])).await?.1, 1, "a second");
        // Without attributes nothing is taken in.
        let root = who();
        let bare = client.readdir(&root, dirs[6], Part::new(0, 200, false));
        assert_eq!(cell.count(bare).await?.1, 1);
        Ok(())
    });
}

#[test]
fn what_was_listed_ahead_ends_with_its_lease() {
    on_a_cell(|cell| async move {
        let (top, dirs) = tree(&cell, 4).await?;
        let client = &cell.client;
        listed(client, top).await?;
        listed(client, dirs[0]).await?;
        cell.world.clock.sleep(4_500_000_000).await;
        assert_eq!(cell.count(listed(client, dirs[1])).await?.1, 1);
        Ok(())
    });
}

#[test]
fn a_part_that_has_no_room_for_all_goes_on_where_it_ended() {
    on_a_cell(|cell| async move {
        let (top, dirs) = tree(&cell, 3).await?;
        let client = &cell.client;
        listed(client, top).await?;
        listed(client, dirs[0]).await?;
        let root = who();
        let one = client.readdir(&root, dirs[1], Part::new(0, 1, true));
        let ((entries, end), trips) = cell.count(one).await?;
        assert_eq!((entries.len(), end, trips), (1, false, 0));
        let rest = Part::new(entries[0].cookie, 1, true);
        let (entries, _end) = client.readdir(&root, dirs[1], rest).await?;
        assert_eq!(entries.len(), 1);
        Ok(())
    });
}

#[test]
fn a_change_of_ones_own_is_listed() {
    on_a_cell(|cell| async move {
        let (top, dirs) = tree(&cell, 8).await?;
        let client = &cell.client;
        listed(client, top).await?;
        let first = listed(client, dirs[0]).await?;
        assert_eq!(cell.count(listed(client, dirs[1])).await?.1, 0, "ahead");
        create(client, dirs[2], "c", true).await?;
        assert!(listed(client, dirs[2]).await?.contains_key("c"));
        cell.world.clock.sleep(QUIET_NS).await;
        listed(client, dirs[3]).await?;
        let file = first["a"].1;
        chmod(client, file, 0o601).await?;
        assert_eq!(listed(client, dirs[0]).await?["a"].0, 0o601);
        // Who changes something lists nothing ahead.
        assert_eq!(cell.count(listed(client, dirs[4])).await?.1, 1);
        assert_eq!(cell.count(listed(client, dirs[5])).await?.1, 1);
        Ok(())
    });
}

/// What the writer knows of one directory: names with their modes, and how often it began, and ended, to change something there.
#[derive(Default, Clone)]
struct Known {
    names: BTreeMap<String, u32>,
    begun: u64,
    ended: u64,
}

/// Files come, go and change, for a while.
async fn changes(
    world: Rc<World>,
    writer: Rc<SimClient>,
    dirs: Vec<Ino>,
    known: Rc<RefCell<BTreeMap<Ino, Known>>>,
    seed: u64,
) -> Result<(), ErrorCode> {
    let mut rng = Rng::new(seed);
    for round in 0..150u64 {
        // Sometimes fast, and sometimes so slow that whole walks lie between two changes.
        let pause = if rng.chance(300) {
            1_500_000_000
        } else {
            3_000_000
        };
        world.clock.sleep(rng.below(pause)).await;
        let dir = *rng.pick(&dirs).expect("a directory");
        let before = {
            let mut known = known.borrow_mut();
            let known = known.entry(dir).or_default();
            known.begun += 1;
            known.names.clone()
        };
        let names: Vec<&String> = before.keys().collect();
        let (text, mode) = match (rng.below(3), rng.pick(&names)) {
            (0, Some(text)) => {
                writer.unlink(&who(), dir, name(text)?).await?;
                ((*text).clone(), None)
            }
            (1, Some(text)) => {
                let found = lookup(&writer, dir, text).await?.expect("a file");
                let mode = 0o400 + (round as u32 & 0o77);
                chmod(&writer, found.attr.ino, mode).await?;
                ((*text).clone(), Some(mode))
            }
            _ => {
                let text = format!("f{round}");
                let made = create(&writer, dir, &text, true).await?;
                writer.release(made.file.ino).await?;
                (text, Some(made.found.attr.mode & 0o777))
            }
        };
        let mut known = known.borrow_mut();
        let known = known.entry(dir).or_default();
        known.ended += 1;
        match mode {
            Some(mode) => known.names.insert(text, mode),
            None => known.names.remove(&text),
        };
    }
    Ok(())
}

/// One client changes directories, another walks through them: what was acknowledged before a listing began, and was not being changed
/// meanwhile, is in it as it was acknowledged. The walker changes something too, now and then.
async fn walked_while_it_changes(world: Rc<World>, seed: u64) -> Result<(), ErrorCode> {
    let writer = Rc::new(world.connect(0, Rng::new(2)).await?);
    let walker = Rc::new(world.connect(1, Rng::new(3)).await?);
    for (index, client) in [&writer, &walker].into_iter().enumerate() {
        world.serve_client(index, client, &Rc::new(KernelCache::default()));
    }
    let home = make_dir(&writer, Ino::ROOT, "home").await?;
    let top = make_dir(&writer, home, "top").await?;
    let mut dirs = Vec::new();
    let known = Rc::new(RefCell::new(BTreeMap::<Ino, Known>::new()));
    for number in 0..12 {
        let dir = make_dir(&writer, top, &format!("d{number}")).await?;
        dirs.push(dir);
        known.borrow_mut().insert(dir, Known::default());
    }
    world.network.set_faults(LinkFaults {
        slow: 20,
        duplicate: 20,
        ..LinkFaults::NONE
    });
    let is_over = Rc::new(Cell::new(false));
    let (over, what) = (is_over.clone(), known.clone());
    let changes = changes(world.clone(), writer, dirs.clone(), what, seed);
    world.spawn_program(0, async move {
        changes.await.expect("changes");
        over.set(true);
    });
    let mut rng = Rng::new(seed + 1000);
    let mut same = 0;
    while !is_over.get() {
        listed(&walker, top).await?;
        for dir in &dirs {
            if rng.chance(20) {
                let made = create(&walker, home, &format!("w{}", rng.bits()), true).await?;
                walker.release(made.file.ino).await?;
            }
            let before = known.borrow()[dir].clone();
            let found = listed(&walker, *dir).await?;
            let after = known.borrow()[dir].clone();
            if before.ended != after.begun {
                continue;
            }
            same += 1;
            let found: BTreeMap<String, u32> = found
                .into_iter()
                .map(|(text, (mode, _ino))| (text, mode))
                .collect();
            assert_eq!(found, after.names, "seed {seed}");
        }
        world.clock.sleep(rng.below(400_000_000)).await;
    }
    assert!(same > 100, "{same} listings between changes");
    Ok(())
}

#[test]
fn what_another_client_changes_is_listed() {
    for seed in 0..12 {
        run_on(Size::new(1, 1, 2), move |world| {
            walked_while_it_changes(world, seed)
        });
    }
}
