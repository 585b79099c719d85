//! A file in a cell, written without a mount.

use super::cell::Cell;
use std::sync::Arc;
use zonal_client::names::NewFile;
use zonal_client::{Client, Options};
use zonal_mount::{RealNet, block_on};
use zonal_net::{Identity, Pool, PoolConfig, Role};
use zonal_types::{CellId, Credentials, Ino, Name, NodeId, ZoneId};
use zonal_wire::NewKind;

/// Writes `/marked`, through to the targets.
pub fn write(cell: &Cell, bytes: &[u8]) {
    write_all(cell, &["marked".to_owned()], bytes);
}

/// Writes files with these names in the root directory.
pub fn write_all(cell: &Cell, names: &[String], bytes: &[u8]) {
    let identity = Identity::new(CellId::default(), Role::Client, NodeId(0), None);
    let pool = Arc::new(Pool::new(identity, PoolConfig::default()));
    let manager = cell.address("manager", false).to_string();
    let options = Options::new(&manager, ZoneId(1), 7);
    let client = block_on(Client::connect(RealNet::new(pool), options)).unwrap();
    let who = Credentials {
        uid: 0,
        gid: 0,
        groups: Vec::new(),
    };
    let new = NewFile {
        kind: NewKind::File,
        mode: 0o644,
        umask: 0,
    };
    let flags = zonal_wire::meta::flags::O_RDWR;
    for name in names {
        let name = Name::new(name.as_bytes()).unwrap();
        let opened = client.create(&who, Ino::ROOT, name, new.clone(), flags);
        let opened = block_on(opened).unwrap();
        block_on(client.write_through(&opened.file, 0, bytes, true)).unwrap();
    }
    block_on(client.close()).unwrap();
}
