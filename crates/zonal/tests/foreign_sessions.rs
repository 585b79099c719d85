//! Sessions of other clients: a stranger who speaks the protocol cannot end them.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;
#[allow(dead_code, reason = "the other test uses the rest")]
mod hostile;

use cell::Cell;
use hostile::Server;
use hostile::impossible_requests::root_user;
use zonal_net::{Identity, Pool, PoolConfig, Role};
use zonal_types::{CellId, ErrorCode, Ino, Name, NodeId, SessionId, ZoneId};
use zonal_wire::meta::{LockKind, LockRange, NewKind};
use zonal_wire::storage::ErrorNumber;
use zonal_wire::{MetaReply, MetaRequest, Service};

fn pool() -> Pool {
    let identity = Identity::new(CellId::default(), Role::Client, NodeId(0), None);
    Pool::new(identity, PoolConfig::default())
}

fn failed(code: ErrorCode) -> MetaReply {
    MetaReply::Failed {
        code: ErrorNumber(code),
    }
}

fn lock(ino: Ino) -> MetaRequest {
    let range = LockRange {
        whole_file: true,
        owner: 1,
        handle: 1,
        number: 1,
        pid: 1,
        kind: LockKind::Exclusive,
        start: 0,
        end: u64::MAX,
    };
    MetaRequest::Lock {
        ino,
        range,
        wait: false,
        waiter: 0,
        settled: 0,
    }
}

#[test]
fn a_strangers_close_session_releases_no_lock() {
    let cell = Cell::up("foreign");
    let (owners, strangers) = (pool(), pool());
    let at = cell.address("manager", false);
    let mut owner = Server::new(&owners, at, Service::Meta);
    owner.open_session(0x0a11ce);
    let made = owner.meta(&MetaRequest::Create {
        who: root_user(0),
        parent: Ino::ROOT,
        name: Name::new(b"locked").unwrap(),
        kind: NewKind::File,
        mode: 0o644,
        umask: 0,
        zone: ZoneId(1),
        node: NodeId(0),
        open: false,
        open_flags: 0,
        exclusive: true,
    });
    let (MetaReply::Entry { entry } | MetaReply::Made { entry, .. }) = made else {
        panic!("{made:?}");
    };
    assert_eq!(owner.meta(&lock(entry.ino)), MetaReply::Done);

    let mut stranger = Server::new(&strangers, at, Service::Meta);
    for number in 1..=1_000 {
        stranger.session = SessionId(number);
        let closed = stranger.meta(&MetaRequest::CloseSession);
        assert_eq!(closed, failed(ErrorCode::UnknownSession), "{number}");
    }
    // Only commands may evict clients.
    for session in [SessionId(1), owner.session] {
        stranger.session = session;
        let evicted = stranger.meta(&MetaRequest::EvictSession);
        assert_eq!(evicted, failed(ErrorCode::NotPermitted));
    }
    stranger.session = SessionId(0);
    stranger.open_session(0xbad);
    let taken = stranger.meta(&lock(entry.ino));
    assert_eq!(taken, failed(ErrorCode::WouldBlock));
    // The owner's session lives.
    let data = false;
    let ino = entry.ino;
    let attr = owner.meta(&MetaRequest::GetAttr { ino, data });
    assert!(matches!(attr, MetaReply::Attr { .. }), "{attr:?}");
}
