//! Files in a cell, made without a mount.
#![allow(dead_code, reason = "each test file uses a part of it")]

use super::cell::Cell;
use std::sync::Arc;
use zonal_client::names::{NewFile, OpenedFile};
use zonal_client::{Client, ClientOptions};
use zonal_native::{RealNet, block_on};
use zonal_net::{Identity, Pool, PoolConfig, Role};
use zonal_types::{CellId, ClientId, Credentials, Ino, Name, NodeId, ZoneId};
use zonal_wire::NewKind;

/// Connections of a client.
pub fn pool() -> Pool {
    let identity = Identity::new(CellId::default(), Role::Client, NodeId(0), None);
    Pool::new(identity, PoolConfig::default())
}

/// Connections of a command.
pub fn commands_pool() -> Pool {
    let identity = Identity::new(CellId::default(), Role::Tool, NodeId(0), None);
    Pool::new(identity, PoolConfig::default())
}

/// A client of the cell with this manager.
pub fn connect(manager: &str) -> Client<RealNet> {
    let options = ClientOptions::new(manager, ZoneId(1), ClientId(7));
    let net = RealNet::new(Arc::new(pool()));
    block_on(Client::connect(net, options)).unwrap()
}

/// Makes a file in the root directory.
pub fn create(client: &Client<RealNet>, name: &str) -> OpenedFile<RealNet> {
    let new = NewFile {
        kind: NewKind::File,
        mode: 0o644,
        umask: 0,
    };
    let name = Name::new(name.as_bytes()).unwrap();
    let flags = zonal_wire::meta::flags::O_RDWR;
    let who = Credentials::root();
    block_on(client.begin().create(&who, Ino::ROOT, name, new, flags)).unwrap()
}

/// Writes `/marked` and flushes it to the targets.
pub fn write(cell: &Cell, bytes: &[u8]) {
    write_all(cell, &["marked".to_owned()], bytes);
}

/// Writes files with these names in the root directory.
pub fn write_all(cell: &Cell, names: &[String], bytes: &[u8]) {
    let client = connect(&cell.address("manager", false).to_string());
    for name in names {
        let opened = create(&client, name);
        block_on(client.begin().write_through(&opened.file, 0, bytes, true)).unwrap();
    }
    block_on(client.begin().close()).unwrap();
}
