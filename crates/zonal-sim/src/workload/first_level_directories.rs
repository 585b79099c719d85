//! A program on first-level directories, which two shards store together: each name must behave as
//! if a single shard stored it.

use super::{SimClient, create, lookup, make_dir, name, who};
use crate::rng::SimRng;
use crate::world::World;
use std::collections::BTreeMap;
use std::rc::Rc;
use zonal_types::{ErrorCode, Ino};

/// Names of the program.
const NAMES: u64 = 3;

type Outcome = Result<(), String>;

fn expect(doing: &str, got: Result<(), ErrorCode>, want: Result<(), ErrorCode>) -> Outcome {
    if got == want {
        return Ok(());
    }
    Err(format!("{doing}: got {got:?}, the model says {want:?}"))
}

/// Makes, fills, renames and removes own directories in the root.
///
/// # Errors
/// A difference from the model.
pub async fn change_roots(
    world: Rc<World>,
    client: Rc<SimClient>,
    index: usize,
    mut rng: SimRng,
    steps: u64,
) -> Outcome {
    let mut known: BTreeMap<String, (Ino, bool)> = BTreeMap::new();
    for _ in 0..steps {
        let at = format!("r{index}-{}", rng.below(NAMES));
        let other = format!("r{index}-{}", rng.below(NAMES));
        let checked = name(&at).map_err(|code| code.to_string())?;
        let is_full = known.get(&at).map(|(_, is_full)| *is_full);
        match rng.below(10) {
            0..4 if is_full.is_none() => {
                let made = make_dir(&client, Ino::ROOT, &at).await;
                let ino = made.map_err(|code| format!("mkdir /{at}: {code}"))?;
                known.insert(at.clone(), (ino, false));
            }
            0..6 => {
                let want = match is_full {
                    None => Err(ErrorCode::NotFound),
                    Some(true) => Err(ErrorCode::NotEmpty),
                    Some(false) => Ok(()),
                };
                let got = client.begin().rmdir(&who(), Ino::ROOT, checked).await;
                expect(&format!("rmdir /{at}"), got, want)?;
                if want.is_ok() {
                    known.remove(&at);
                }
            }
            6..8 if !known.contains_key(&other) => {
                let to = name(&other).map_err(|code| code.to_string())?;
                let moved = known.get(&at).copied();
                let got = client
                    .begin()
                    .rename(&who(), (Ino::ROOT, checked), (Ino::ROOT, to), 0)
                    .await;
                let want = moved.map(|_| ()).ok_or(ErrorCode::NotFound);
                expect(&format!("rename /{at} to /{other}"), got, want)?;
                if let Some(moved) = moved {
                    known.remove(&at);
                    known.insert(other.clone(), moved);
                }
            }
            8 if is_full == Some(false) => {
                let Some((ino, is_full)) = known.get_mut(&at) else {
                    continue;
                };
                let opened = create(&client, *ino, "x", true).await;
                let opened = opened.map_err(|code| format!("create /{at}/x: {code}"))?;
                *is_full = true;
                let released = client.begin().release(opened.file.ino).await;
                released.map_err(|code| code.to_string())?;
            }
            _ => {
                let found = lookup(&client, Ino::ROOT, &at).await;
                let found = found.map_err(|code| format!("lookup /{at}: {code}"))?;
                let found = found.map(|found| found.attr.ino);
                if found != known.get(&at).map(|(ino, _)| *ino) {
                    return Err(format!(
                        "lookup /{at} gives {found:?}, the model has {:?}",
                        known.get(&at)
                    ));
                }
            }
        }
        world.count_operation();
        world.clock.sleep(rng.below(200_000_000)).await;
    }
    remove_all(&client, known).await
}

/// Removes the directories that a program left, with their file where they are full.
async fn remove_all(client: &SimClient, known: BTreeMap<String, (Ino, bool)>) -> Outcome {
    for (at, (ino, is_full)) in known {
        if is_full {
            let inside = name("x").map_err(|code| code.to_string())?;
            let gone = client.begin().unlink(&who(), ino, inside).await;
            expect(&format!("unlink /{at}/x"), gone, Ok(()))?;
        }
        let checked = name(&at).map_err(|code| code.to_string())?;
        let gone = client.begin().rmdir(&who(), Ino::ROOT, checked).await;
        expect(&format!("rmdir /{at}"), gone, Ok(()))?;
    }
    Ok(())
}

/// Makes and removes first-level directories while power fails. Single operations may fail; in the
/// end the two shards must agree.
pub async fn churn_roots(
    world: Rc<World>,
    client: Rc<SimClient>,
    index: usize,
    mut rng: SimRng,
    steps: u64,
) {
    for _ in 0..steps {
        let at = format!("p{index}-{}", rng.below(NAMES));
        if rng.chance(500) {
            make_dir(&client, Ino::ROOT, &at).await.ok();
        } else if let Ok(checked) = name(&at) {
            client.begin().rmdir(&who(), Ino::ROOT, checked).await.ok();
        }
        world.count_operation();
        world.clock.sleep(rng.below(300_000_000)).await;
    }
}
