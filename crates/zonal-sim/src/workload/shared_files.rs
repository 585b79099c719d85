//! Programs on files that several clients share: appends to one log, and a file that clients hand
//! on by closing it.

use super::{SimClient, create, open, read_all};
use crate::checker::append_log::{self, RecordAcks};
use crate::checker::close_to_open;
use crate::rng::SimRng;
use crate::world::World;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use zonal_types::{ErrorCode, Ino};

/// Length of the file that is handed on.
const BATON_BYTES: usize = 24_000;

/// Shared state of the programs of one world.
#[derive(Default)]
pub struct SharedFiles {
    appended: RefCell<RecordAcks>,
    /// The newest version whose close returned.
    closed: Cell<u64>,
    /// The newest version whose write began.
    written: Cell<u64>,
}

fn text(code: ErrorCode) -> String {
    code.to_string()
}

/// Appends records to `log` in `dir`.
///
/// # Errors
/// An operation failed.
pub async fn append_some(
    world: Rc<World>,
    client: Rc<SimClient>,
    index: usize,
    dir: Ino,
    shared: Rc<SharedFiles>,
    mut rng: SimRng,
    records: u64,
) -> Result<(), String> {
    let opened = create(&client, dir, "log", false).await.map_err(text)?;
    for number in 0..records {
        shared.appended.borrow_mut().insert((index, number), false);
        let record = append_log::record(index, number);
        match client.begin().append(&opened.file, &record, false).await {
            Ok(_offset) => {
                shared.appended.borrow_mut().insert((index, number), true);
            }
            // The shard was restarted between reservation and publication, and the program learns
            // that the append failed.
            Err(ErrorCode::UnknownLease) => {}
            Err(code) => return Err(format!("append {number} of client {index}: {code}")),
        }
        world.count_operation();
        world.clock.sleep(rng.below(30_000_000)).await;
    }
    client.begin().release(opened.file.ino).await.map_err(text)
}

/// Checks the log after all programs have ended.
///
/// # Errors
/// An operation failed, or something is wrong with the log.
pub async fn check_log(
    client: &SimClient,
    dir: Ino,
    shared: &SharedFiles,
    may_give_up: bool,
) -> Result<(), String> {
    let opened = create(client, dir, "log", false).await.map_err(text)?;
    let content = read_all(client, &opened.file).await.map_err(text)?;
    client
        .begin()
        .release(opened.file.ino)
        .await
        .map_err(text)?;
    let broken = append_log::check(&content, &shared.appended.borrow(), may_give_up);
    if broken.is_empty() {
        Ok(())
    } else {
        Err(broken.join("; "))
    }
}

/// Writes version after version, and closes the file after each.
///
/// # Errors
/// An operation failed.
pub async fn write_baton(
    world: Rc<World>,
    client: Rc<SimClient>,
    file: Ino,
    shared: Rc<SharedFiles>,
    mut rng: SimRng,
    versions: u64,
) -> Result<(), String> {
    for version in 1..=versions {
        let opened = open(&client, file).await.map_err(text)?;
        shared.written.set(version);
        let bytes = close_to_open::content(version, BATON_BYTES);
        client
            .begin()
            .write(&opened.file, 0, &bytes, false)
            .await
            .map_err(text)?;
        client.begin().release(file).await.map_err(text)?;
        shared.closed.set(version);
        world.count_operation();
        world.clock.sleep(rng.below(60_000_000)).await;
    }
    Ok(())
}

/// Opens, reads and closes the file repeatedly.
///
/// # Errors
/// An operation failed, or a read was wrong.
pub async fn read_baton(
    world: Rc<World>,
    client: Rc<SimClient>,
    file: Ino,
    shared: Rc<SharedFiles>,
    mut rng: SimRng,
    rounds: u64,
) -> Result<(), String> {
    for _ in 0..rounds {
        let closed = shared.closed.get();
        let opened = open(&client, file).await.map_err(text)?;
        let seen = read_all(&client, &opened.file).await.map_err(text)?;
        client.begin().release(file).await.map_err(text)?;
        let written = shared.written.get();
        if closed > 0 && seen.len() != BATON_BYTES {
            return Err(format!(
                "close-to-open: {} bytes after version {closed}",
                seen.len()
            ));
        }
        if let Some(broken) = close_to_open::check(&seen, closed, written) {
            return Err(broken);
        }
        world.count_operation();
        world.clock.sleep(rng.below(60_000_000)).await;
    }
    Ok(())
}
