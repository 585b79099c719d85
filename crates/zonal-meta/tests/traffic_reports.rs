//! Reports of traffic: a shard counts bytes of files by first-level directory.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::*;
use zonal_types::limits::TRAFFIC_REPORT_FILES_MAX;
use zonal_types::{DataId, ErrorCode, FileData, Ino};
use zonal_wire::{ClientTraffic, MetaReply, MetaRequest};

fn data_id(data: &FileData) -> DataId {
    data.layout.data_ids().next().unwrap()
}

/// Reports some bytes of each file; returns the files' directories.
fn report(
    client: &mut Client,
    cell: &mut Cell,
    number: u64,
    files: &[(DataId, u64)],
) -> Result<Vec<(DataId, Ino)>, ErrorCode> {
    let bytes = |bytes| ClientTraffic {
        read_cross_zone: bytes,
        ..ClientTraffic::default()
    };
    let traffic = files.iter().map(|(file, read)| (*file, bytes(*read)));
    let request = MetaRequest::ReportTraffic {
        number,
        traffic: traffic.collect(),
    };
    match client.call(cell, Ino(files[0].0.0), &request)? {
        MetaReply::TrafficDirs { dirs } => Ok(dirs),
        other => panic!("{other:?}"),
    }
}

/// Bytes that the zone's shard has counted, by directory.
fn counted(cell: &Cell) -> Vec<(u64, u64)> {
    let list = cell.stores[1].shard.directory_traffic().into_iter();
    list.map(|entry| (entry.dir.0, entry.traffic.read_cross_zone))
        .collect()
}

#[test]
fn bytes_count_for_the_first_level_directory_above_the_file() {
    let mut cell = Cell::new();
    let mut client = cell.client(1);
    let [one, two] = ["one", "two"].map(|name| client.mkdir(&mut cell, Ino::ROOT, name).unwrap());
    let sub = client.mkdir(&mut cell, one, "sub").unwrap();
    let deep = client.mkdir(&mut cell, sub, "deep").unwrap();
    let (_, top) = client.create_open(&mut cell, one, "top").unwrap();
    let (_, low) = client.create_open(&mut cell, deep, "low").unwrap();
    let (_, other) = client.create_open(&mut cell, two, "other").unwrap();
    let [top, low, other] = [&top, &low, &other].map(data_id);

    let files = [(top, 1), (low, 20), (other, 300)];
    let dirs = report(&mut client, &mut cell, 1, &files).unwrap();
    assert_eq!(dirs, [(top, one), (low, one), (other, two)]);
    assert_eq!(counted(&cell), [(one.0, 21), (two.0, 300)]);

    // Its reply was lost: the same directories, and nothing is counted twice.
    assert_eq!(report(&mut client, &mut cell, 1, &files), Ok(dirs));
    assert_eq!(counted(&cell), [(one.0, 21), (two.0, 300)]);

    // A tree that moves takes its later bytes with it.
    client.moved(&mut cell, (one, "sub"), (two, "sub"));
    let dirs = report(&mut client, &mut cell, 2, &[(low, 5)]).unwrap();
    assert_eq!(dirs, [(low, two)]);
    assert_eq!(counted(&cell), [(one.0, 21), (two.0, 305)]);
}

#[test]
fn an_open_file_without_a_name_keeps_its_directory_and_a_removed_one_has_none() {
    let mut cell = Cell::new();
    let mut client = cell.client(1);
    let home = client.mkdir(&mut cell, Ino::ROOT, "home").unwrap();
    let (ino, data) = client.create_open(&mut cell, home, "f").unwrap();
    let file = data_id(&data);
    client.unlink(&mut cell, home, "f").unwrap();
    let dirs = report(&mut client, &mut cell, 1, &[(file, 7)]).unwrap();
    assert_eq!(dirs, [(file, home)]);
    client.close(&mut cell, ino).unwrap();
    assert_eq!(report(&mut client, &mut cell, 2, &[(file, 8)]), Ok(vec![]));
    assert_eq!(counted(&cell), [(home.0, 7), (0, 8)]);
}

#[test]
fn a_report_of_too_many_files_or_of_strange_ones_harms_nothing() {
    let mut cell = Cell::new();
    let mut client = cell.client(1);
    let home = client.mkdir(&mut cell, Ino::ROOT, "home").unwrap();
    let strange = [home.0, u64::MAX, 0, 1].map(|number| (DataId(number), u64::MAX));
    assert_eq!(report(&mut client, &mut cell, 1, &strange), Ok(vec![]));
    let many = vec![(DataId(home.0), 1); TRAFFIC_REPORT_FILES_MAX + 1];
    let refused = report(&mut client, &mut cell, 2, &many);
    assert_eq!(refused, Err(ErrorCode::Invalid));
    assert_eq!(counted(&cell), [(0, u64::MAX)]);
}
