//! Programs that clients run.

pub mod append_logs;
pub mod bad_media;
pub mod fences;
pub mod first_level_directories;
pub mod hostile_messages;
pub mod kernel_cache;
pub mod killed_client;
pub mod lock_turns;
pub mod map_edits;
pub mod private_tree;
pub mod shared_files;
pub mod synced_versions;
pub mod together;

use crate::net::SimNet;
use zonal_client::names::ListingPage;
use zonal_client::names::{FoundEntry, LookupResult, OpenedFile};
use zonal_client::{Client, File};
use zonal_types::{Credentials, ErrorCode, Ino, Name, Placement};
use zonal_wire::meta::flags;

/// The client type of the simulator.
pub type SimClient = Client<SimNet>;

/// Credentials of the programs.
#[must_use]
pub fn who() -> Credentials {
    Credentials::root()
}

/// Converts a text to a name.
///
/// # Errors
/// `Invalid` where the text is no valid name.
pub fn name(text: &str) -> Result<Name, ErrorCode> {
    Name::new(text.as_bytes())
}

/// Makes a file that must not exist, and opens it.
///
/// # Errors
/// An error of the cell.
pub async fn create(
    client: &SimClient,
    dir: Ino,
    text: &str,
    exclusive: bool,
) -> Result<OpenedFile<SimNet>, ErrorCode> {
    let new = zonal_client::names::NewFile {
        kind: zonal_wire::NewKind::File,
        mode: 0o644,
        umask: 0,
    };
    let open_flags = flags::O_RDWR | if exclusive { flags::O_EXCL } else { 0 };
    client
        .begin()
        .create(&who(), dir, name(text)?, new, open_flags)
        .await
}

/// Opens a file for reading and writing.
///
/// # Errors
/// As the cell answers.
pub async fn open(client: &SimClient, ino: Ino) -> Result<OpenedFile<SimNet>, ErrorCode> {
    client.begin().open(&who(), ino, flags::O_RDWR).await
}

/// Makes a directory, or finds an existing one.
///
/// # Errors
/// An error of the cell.
pub async fn make_dir(client: &SimClient, dir: Ino, text: &str) -> Result<Ino, ErrorCode> {
    match client
        .begin()
        .mkdir(&who(), dir, name(text)?, (0o755, 0), None)
        .await
    {
        Ok(found) => Ok(found.attr.ino),
        Err(ErrorCode::Exists) => lookup(client, dir, text)
            .await?
            .map(|found| found.attr.ino)
            .ok_or(ErrorCode::NotFound),
        Err(code) => Err(code),
    }
}

/// Sets the servers of new files of a directory, and their redundancy.
///
/// # Errors
/// An error of the cell.
pub async fn set_placement(
    client: &SimClient,
    dir: Ino,
    placement: Placement,
    redundancy: &str,
) -> Result<(), ErrorCode> {
    let value = format!("placement={} {redundancy}", placement.word());
    client
        .begin()
        .setxattr(&who(), dir, b"zonal.layout", value.as_bytes(), 0)
        .await
}

/// Looks a name up.
///
/// # Errors
/// As the cell answers.
pub async fn lookup(
    client: &SimClient,
    dir: Ino,
    text: &str,
) -> Result<Option<FoundEntry>, ErrorCode> {
    match client.begin().lookup(&who(), dir, name(text)?).await? {
        LookupResult::Found(found) => Ok(Some(found)),
        LookupResult::Absent(_) => Ok(None),
    }
}

/// Reads a whole file.
///
/// # Errors
/// An error of the cell.
pub async fn read_all(client: &SimClient, file: &File<SimNet>) -> Result<Vec<u8>, ErrorCode> {
    let mut all = Vec::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let got = client
            .begin()
            .read(file, all.len() as u64, &mut buffer)
            .await?;
        if got == 0 {
            return Ok(all);
        }
        all.extend_from_slice(&buffer[..got]);
    }
}

/// Lists all names of a directory.
///
/// # Errors
/// An error of the cell.
pub async fn list(
    client: &SimClient,
    dir: Ino,
    batch: u32,
) -> Result<Vec<(String, Ino)>, ErrorCode> {
    let mut names = Vec::new();
    let mut cookie = 0;
    loop {
        let (entries, end) = client
            .begin()
            .readdir(&who(), dir, ListingPage::new(cookie, batch, false))
            .await?;
        for entry in &entries {
            names.push((entry.name.to_string(), entry.entry.ino));
            cookie = entry.cookie;
        }
        if end || entries.is_empty() {
            return Ok(names);
        }
    }
}

/// Removes everything in a directory.
///
/// # Errors
/// An error of the cell.
pub async fn remove_all(client: &SimClient, top: Ino) -> Result<(), ErrorCode> {
    let mut stack = vec![(top, None::<(Ino, String)>)];
    while let Some((dir, above)) = stack.pop() {
        let mut dirs = Vec::new();
        for (text, ino) in list(client, dir, 7).await? {
            match client.begin().unlink(&who(), dir, name(&text)?).await {
                Ok(()) => {}
                Err(ErrorCode::IsDirectory) => dirs.push((ino, Some((dir, text)))),
                Err(code) => return Err(code),
            }
        }
        if dirs.is_empty() {
            if let Some((parent, text)) = above {
                client.begin().rmdir(&who(), parent, name(&text)?).await?;
            }
        } else {
            stack.push((dir, above));
            stack.append(&mut dirs);
        }
    }
    Ok(())
}
