//! A walk through a tree with prefetched listings never shows anything older than a walk without
//! prefetch.
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

use common::directory_listing::{chmod, listed};
use common::run_on;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use zonal_sim::net::LinkFaults;
use zonal_sim::rng::SimRng;
use zonal_sim::workload::{SimClient, create, lookup, make_dir, name, who};
use zonal_sim::world::{CellSize, World};
use zonal_types::{ErrorCode, Ino};

/// Two clients that hear of one another's changes.
async fn both(world: &Rc<World>) -> Result<[Rc<SimClient>; 2], ErrorCode> {
    let one = Rc::new(world.connect(0, SimRng::new(2)).await?);
    let two = Rc::new(world.connect(1, SimRng::new(3)).await?);
    for (index, client) in [&one, &two].into_iter().enumerate() {
        world.serve_client(index, client, &Rc::default());
    }
    Ok([one, two])
}

/// Two clients, and four directories, in each of which `fill` makes something.
async fn two<F: Future<Output = Result<Ino, ErrorCode>>>(
    world: &Rc<World>,
    fill: impl Fn(Rc<SimClient>, Ino, Ino) -> F,
) -> Result<(Rc<SimClient>, Rc<SimClient>, Ino, Vec<(Ino, Ino)>), ErrorCode> {
    let [writer, walker] = both(world).await?;
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
        client.begin().release(ino).await?;
        let other = name(&format!("l{}", dir.0))?;
        client.begin().hard_link(&who(), ino, home, other).await?;
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
    run_on(CellSize::new(1, 1, 2), with_two_names);
}

async fn while_a_change_waits(world: Rc<World>) -> Result<(), ErrorCode> {
    let third = world.connect(2, SimRng::new(4)).await?;
    let (writer, walker, top, dirs) = two(&world, |client, _home, dir| async move {
        make_dir(&client, dir, "s").await
    })
    .await?;
    // The walker lists, and hears of no event any more: the change waits until its lease is over.
    let sub = dirs[1].1;
    third.begin().getattr(sub).await?;
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
    run_on(CellSize::new(1, 1, 3), while_a_change_waits);
}

/// The writer's knowledge of one directory: names with their modes, and how often it began, and
/// ended, a change there.
#[derive(Default, Clone)]
struct KnownListing {
    names: BTreeMap<String, u32>,
    begun: u64,
    ended: u64,
}

/// Makes, removes and changes files for a while.
async fn changes(
    world: Rc<World>,
    writer: Rc<SimClient>,
    dirs: Vec<Ino>,
    known: Rc<RefCell<BTreeMap<Ino, KnownListing>>>,
    seed: u64,
) -> Result<(), ErrorCode> {
    let mut rng = SimRng::new(seed);
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
                writer.begin().unlink(&who(), dir, name(text)?).await?;
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
                writer.begin().release(made.file.ino).await?;
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

/// One client changes directories, another walks through them. A listing has the state that was
/// acknowledged before it began, except for changes meanwhile. The walker changes something too,
/// now and then.
async fn walked_while_it_changes(world: Rc<World>, seed: u64) -> Result<(), ErrorCode> {
    let [writer, walker] = both(&world).await?;
    let home = make_dir(&writer, Ino::ROOT, "home").await?;
    let top = make_dir(&writer, home, "top").await?;
    let mut dirs = Vec::new();
    let known = Rc::new(RefCell::new(BTreeMap::<Ino, KnownListing>::new()));
    for number in 0..12 {
        let dir = make_dir(&writer, top, &format!("d{number}")).await?;
        dirs.push(dir);
        known.borrow_mut().insert(dir, KnownListing::default());
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
    let mut rng = SimRng::new(seed + 1000);
    let mut same = 0;
    while !is_over.get() {
        listed(&walker, top).await?;
        for dir in &dirs {
            if rng.chance(20) {
                let made = create(&walker, home, &format!("w{}", rng.bits()), true).await?;
                walker.begin().release(made.file.ino).await?;
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
fn changes_of_another_client_are_listed() {
    for seed in 0..12 {
        run_on(CellSize::new(1, 1, 2), move |world| {
            walked_while_it_changes(world, seed)
        });
    }
}
