//! Frames on a terminal in memory.

use super::*;
use crate::cell::node_status::NodeStatus;
use crate::top::rates::tests::{cell, later, node, times};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use zonal_types::TargetId;
use zonal_wire::{ClientTraffic, ClientZoneTraffic, DirectoryTraffic};

/// A cell with traffic, a silent node and a full target.
fn rates() -> CellRates {
    const MIB: u64 = 1 << 20;
    let nodes = vec![
        node(3, 1, (100 * MIB, 5 * MIB)),
        node(4, 2, (100 * MIB, 50 * MIB)),
    ];
    let first = cell(nodes);
    let mut second = later(&first, 2, |activity, id| {
        activity.clients.push(ClientZoneTraffic {
            target: TargetId(id.0),
            zone: ZoneId(2),
            read: 4 * MIB,
            written: 2 * MIB,
        });
        activity.directories.push(DirectoryTraffic {
            dir: Ino(77),
            traffic: ClientTraffic {
                read_cross_zone: 4 * MIB,
                ..ClientTraffic::default()
            },
        });
        activity
            .operations
            .push(times("Read", 7000, &[0, 0, 0, 3, 0]));
    });
    second.nodes[1].status = NodeStatus {
        error: Some("did not answer".into()),
        is_silent: true,
        ..NodeStatus::default()
    };
    CellRates::between(Some(&first), &second)
}

fn drawn(screen: &Screen, rates: Option<&CellRates>, (width, height): (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let interval = Duration::from_secs(2);
    let frame = terminal.draw(|frame| draw(frame, screen, rates, interval));
    frame.unwrap();
    let buffer = terminal.backend().buffer().clone();
    let lines = buffer.content().chunks(usize::from(width)).map(|line| {
        let symbols = line.iter().map(ratatui::buffer::Cell::symbol);
        symbols.collect::<String>().trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn table(tab: ScreenTab) -> String {
    let screen = Screen {
        tab,
        ..Screen::default()
    };
    drawn(&screen, Some(&rates()), (120, 16))
}

#[test]
fn the_first_frame_says_that_the_cell_is_asked() {
    let text = drawn(&Screen::default(), None, (80, 10));
    assert!(text.contains("asking the cell"), "{text}");
}

#[test]
fn zones_nodes_and_keys_are_on_the_screen() {
    let text = table(ScreenTab::Nodes);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].contains("2 nodes, 1 not well   map version 7   cell c0ffee"));
    assert!(lines[0].contains("every 2 s") && !lines[0].contains("PAUSED"));
    assert!(lines[1].starts_with("ZONE     WELL"), "{text}");
    assert!(lines[2].starts_with("1 here   1 of 1"), "{text}");
    assert!(lines[2].contains("2.0 MiB/s"), "{text}");
    assert!(lines[3].starts_with("2 there  0 of 1"), "{text}");
    assert!(lines[4].contains("Nodes") && lines[4].contains("Full targets (1)"));
    let three = lines.iter().find(|line| line.starts_with("3 ")).unwrap();
    assert!(
        three.contains("ok") && three.ends_with("127.0.0.1:3"),
        "{text}"
    );
    let four = lines.iter().find(|line| line.starts_with("4 ")).unwrap();
    assert!(four.contains("silent"), "{text}");
    assert!(lines[15].starts_with("q quit"), "{text}");
}

#[test]
fn each_table_has_its_rows() {
    for (tab, header, row) in [
        (
            ScreenTab::Traffic,
            "FROM ZONE  TO 1 READ, WRITTEN",
            "2          2.0 MiB/s, 1.0 MiB/s",
        ),
        (
            ScreenTab::Directories,
            "DIRECTORY  READ IN-ZONE",
            "/data      0 B/s         2.0 MiB/s",
        ),
        (
            ScreenTab::Operations,
            "NODE  SERVICE",
            "3     storage  Read       1.5/s  2.3 ms  8 us",
        ),
        (
            ScreenTab::FullTargets,
            "TARGET  NODE  ZONE",
            "3       3     1     100.0 MiB  5.0 MiB  95.0 %",
        ),
    ] {
        let text = table(tab);
        for start in [header, row] {
            assert!(
                text.lines().any(|line| line.starts_with(start)),
                "{start}:\n{text}"
            );
        }
    }
}

#[test]
fn a_paused_view_says_so_and_scrolled_rows_are_gone() {
    let screen = Screen {
        is_paused: true,
        scrolled: 1,
        ..Screen::default()
    };
    let text = drawn(&screen, Some(&rates()), (120, 16));
    assert!(text.lines().next().unwrap().contains("PAUSED"), "{text}");
    assert!(
        !text.contains("127.0.0.1:3") && text.contains("127.0.0.1:4"),
        "{text}"
    );
    assert_eq!(row_count(&rates(), ScreenTab::Nodes), 2);
}

#[test]
fn any_size_of_a_terminal_is_drawn() {
    for size in [(1, 1), (10, 3), (30, 5), (500, 100)] {
        for tab in ScreenTab::ALL {
            let screen = Screen {
                tab,
                ..Screen::default()
            };
            drawn(&screen, Some(&rates()), size);
        }
    }
}

#[test]
fn foreign_names_do_not_move_the_cursor() {
    let mut rates = rates();
    rates.zones[0].name = "evil\x1b[2J\nname".into();
    rates.nodes[0].address = "\x1b]0;title\x07".into();
    let text = drawn(&Screen::default(), Some(&rates), (160, 16));
    assert!(
        text.lines().count() == 16 && !text.contains('\x1b'),
        "{text}"
    );
    assert!(text.contains("evil\\x1b[2J"), "{text}");
}

#[test]
fn times_have_a_unit_that_fits() {
    let shown = [0.4, 999.0, 1500.0, 2_500_000.0, f64::INFINITY].map(time);
    assert_eq!(shown, ["0 us", "999 us", "1.5 ms", "2.5 s", "over 67 s"]);
}

#[test]
fn a_narrow_terminal_has_whole_columns_from_the_left() {
    let text = drawn(&Screen::default(), Some(&rates()), (60, 16));
    for shown in ["READ IN-ZONE  CROSS-ZONE", "HEALTH  SERVES    FREE"] {
        assert!(text.contains(shown), "{shown}:\n{text}");
    }
    let screen = Screen {
        is_paused: true,
        ..Screen::default()
    };
    let text = drawn(&screen, Some(&rates()), (60, 16));
    assert!(text.lines().next().unwrap().contains("PAUSED"), "{text}");
}
