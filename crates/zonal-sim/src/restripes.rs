//! A command that stripes files anew, beside programs and faults. It is killed at any step.
//!
//! Zones of the simulator do not grow. So the command gives a directory another number of columns,
//! which new files of it get, before it stripes one of its files anew.

use crate::checker::placement;
use crate::coverage::FaultKind;
use crate::net::SimNet;
use crate::rng::SimRng;
use crate::workload::kernel_cache::KernelCache;
use crate::workload::{SimClient, who};
use crate::world::World;
use std::rc::Rc;
use zonal_client::File;
use zonal_client::names::CopiedState;
use zonal_types::{ErrorCode, Ino};
use zonal_wire::meta::flags::O_RDONLY;

/// Number of the first command's client: no program has it.
const FIRST_CLIENT: usize = 200;
/// Longest pause between two commands, ms.
const EVERY_MS_MAX: u64 = 8_000;
/// Longest time until a command is killed, ms.
const KILLED_MS_MAX: u64 = 6_000;
/// Of 1000 commands, those that are killed.
const KILLED: u64 = 500;
/// Files of one command.
const FILES: u64 = 12;
/// Bytes of one step of a copy.
const STEP: usize = 100_000;

/// Runs commands until the programs have ended or the world heals.
pub async fn order(world: Rc<World>, mut rng: SimRng) {
    for index in FIRST_CLIENT.. {
        let pause = rng.between(100, EVERY_MS_MAX);
        world.clock.sleep(pause * 1_000_000).await;
        if !world.faults_wanted() {
            return;
        }
        let command = run(world.clone(), index, rng.fork(1));
        world.spawn_for_client(index, command);
        if rng.chance(KILLED) {
            let after = rng.between(10, KILLED_MS_MAX);
            world.clock.sleep(after * 1_000_000).await;
            world.kill_client(index);
        }
    }
}

/// One command, with a client of its own.
async fn run(world: Rc<World>, index: usize, mut rng: SimRng) {
    let Ok(client) = world.connect(index, rng.fork(2)).await else {
        return;
    };
    let client = Rc::new(client);
    world.serve_client(index, &client, &Rc::new(KernelCache::default()));
    let targets = world.map.borrow().targets.len() as u64;
    for _file in 0..FILES {
        if !world.faults_wanted() {
            break;
        }
        let files = placement::files_with_directories(&world);
        let Some((ino, dir)) = rng.pick(&files).copied() else {
            break;
        };
        let count = rng.between(1, targets.max(2));
        // The directory may be gone, or its zone have fewer targets.
        set_count(&client, dir, count).await.ok();
        if restripe(&client, ino, dir).await == Ok(()) {
            world.network.count(FaultKind::FileRestriped);
        }
        world.clock.sleep(rng.below(300) * 1_000_000).await;
    }
    client.begin().close().await.ok();
    world.kill_client(index);
}

/// Sets the number of columns of new files; the rest of the directory's layout stays.
async fn set_count(client: &SimClient, dir: Ino, count: u64) -> Result<(), ErrorCode> {
    let (who, name) = (who(), b"zonal.layout");
    let text = client.begin().getxattr(&who, dir, name).await?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let words = text
        .split(' ')
        .map(|word| match word.starts_with("count=") {
            true => format!("count={count}"),
            false => word.to_owned(),
        });
    let text = words.collect::<Vec<_>>().join(" ");
    let call = client.begin();
    call.setxattr(&who, dir, name, text.as_bytes(), 0).await
}

/// Stripes a file anew, as `zonal layout apply --restripe` does.
async fn restripe(client: &SimClient, ino: Ino, dir: Ino) -> Result<(), ErrorCode> {
    let copy = client.begin().begin_restripe(&who(), ino, dir).await?;
    let moved = copy_and_swap(client, ino, &copy.file).await;
    client.begin().release(copy.file.ino).await.ok();
    moved
}

async fn copy_and_swap(client: &SimClient, ino: Ino, copy: &File<SimNet>) -> Result<(), ErrorCode> {
    let boot = client.begin().boot_of(ino).await?;
    let source = client.begin().open(&who(), ino, O_RDONLY).await?;
    let change = source.found.attr.change;
    let done = async {
        copy_bytes(client, (&source.file, copy), source.found.attr.size).await?;
        client.begin().fsync(copy).await?;
        let copied = CopiedState { change, boot };
        let call = client.begin();
        call.swap_bytes(&who(), (ino, copy.ino), copied).await
    };
    let done = done.await;
    client.begin().release(ino).await.ok();
    done
}

async fn copy_bytes(
    client: &SimClient,
    (source, copy): (&File<SimNet>, &File<SimNet>),
    size: u64,
) -> Result<(), ErrorCode> {
    let mut at = source.inline_bytes();
    let mut buffer = vec![0; STEP];
    while at < size {
        at = match client.begin().seek(source, at, true).await {
            Ok(data) => data.max(at),
            Err(ErrorCode::NoDevice) => break,
            Err(code) => return Err(code),
        };
        let end = client.begin().seek(source, at, false).await?.min(size);
        while at < end {
            let step = usize::try_from(end - at).unwrap_or(STEP).min(STEP);
            let read = client.begin().read(source, at, &mut buffer[..step]).await?;
            if read == 0 {
                return Ok(());
            }
            let call = client.begin();
            call.write(copy, at, &buffer[..read], false).await?;
            at += read as u64;
        }
    }
    Ok(())
}
