//! Drawing of the view: zones above, the chosen table below, keys in the last line.
//!
//! Names and addresses are foreign text: they come through [`OneLine`], so that none of it moves
//! the cursor.

use super::rates::{ByteRates, CellRates, NodeHealth};
use super::screen::{Screen, ScreenTab};
use super::whole;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Table, Tabs};
use std::time::Duration;
use zonal_basics::byte_size;
use zonal_types::{Ino, OneLine, ZoneId};

/// Zones shown above the table; the others are counted.
const ZONES_SHOWN: usize = 8;
/// Columns of space between two cells.
const SPACING: u16 = 2;
const KEYS: &str = "q quit   tab/arrows tables   up/down rows   p pause";

/// One table: its header and its rows, all with as many cells.
struct TableText {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
    /// Rows that need attention.
    marked: Vec<usize>,
}

fn shown(text: &str) -> String {
    OneLine(text).to_string()
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn speed(bytes: f64) -> String {
    format!("{}/s", byte_size::rounded(whole(bytes)))
}

/// A time for people: `7.3 ms`.
fn time(us: f64) -> String {
    match us {
        us if !us.is_finite() => "over 67 s".to_owned(),
        us if us < 1000.0 => format!("{us:.0} us"),
        us if us < 1_000_000.0 => format!("{:.1} ms", us / 1000.0),
        us => format!("{:.1} s", us / 1_000_000.0),
    }
}

/// Number of rows of the chosen table.
pub fn row_count(rates: &CellRates, tab: ScreenTab) -> usize {
    table_text(rates, tab).rows.len()
}

/// Draws one frame. `rates` is missing until the first sample is there.
pub fn draw(frame: &mut Frame<'_>, screen: &Screen, rates: Option<&CellRates>, interval: Duration) {
    let Some(rates) = rates else {
        frame.render_widget(Paragraph::new("asking the cell ..."), frame.area());
        return;
    };
    let zones = zone_text(rates);
    let zone_lines = u16::try_from(zones.rows.len() + 1).unwrap_or(u16::MAX);
    let [title, zone_area, tabs, table, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(zone_lines),
        Constraint::Length(1),
        Constraint::Min(3),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Line::from(title_text(screen, rates, interval)), title);
    render_table(frame, &zones, 0, zone_area, Block::new());
    let names = ScreenTab::ALL.map(|tab| Line::from(tab_name(rates, tab)));
    let chosen = Style::new().add_modifier(Modifier::REVERSED);
    let names = Tabs::new(names).select(screen.tab.index());
    frame.render_widget(names.highlight_style(chosen), tabs);
    let text = table_text(rates, screen.tab);
    let frame_of_table = Block::new().borders(Borders::TOP);
    render_table(frame, &text, screen.scrolled, table, frame_of_table);
    frame.render_widget(Line::from(KEYS), keys);
}

fn title_text(screen: &Screen, rates: &CellRates, interval: Duration) -> String {
    let unwell = rates
        .nodes
        .iter()
        .filter(|node| node.state != NodeHealth::Well);
    let pace = match screen.is_paused {
        true => "PAUSED".to_owned(),
        false => format!("every {} s", interval.as_secs()),
    };
    format!(
        "zonal top   {pace}   {} nodes, {} not well   map version {}   cell {}",
        rates.nodes.len(),
        unwell.count(),
        rates.map_version,
        shown(&rates.cell),
    )
}

fn tab_name(rates: &CellRates, tab: ScreenTab) -> String {
    match tab {
        ScreenTab::Nodes => "Nodes".to_owned(),
        ScreenTab::Traffic => "Traffic".to_owned(),
        ScreenTab::Directories => "Directories".to_owned(),
        ScreenTab::Operations => "Slowest operations".to_owned(),
        ScreenTab::FullTargets => format!("Full targets ({})", rates.full_targets.len()),
    }
}

/// Widths of columns: each as its widest cell, until the screen ends. Further ones are not drawn.
fn column_widths(text: &TableText, screen: u16) -> Vec<Constraint> {
    let (mut widths, mut left) = (Vec::new(), screen);
    for column in 0..text.header.len() {
        if left == 0 {
            break;
        }
        let all = std::iter::once(&text.header).chain(&text.rows);
        let cells = all.filter_map(|row| row.get(column));
        let widest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
        let width = u16::try_from(widest).unwrap_or(u16::MAX).min(left);
        widths.push(Constraint::Length(width));
        left = left.saturating_sub(width.saturating_add(SPACING));
    }
    widths
}

fn render_table(
    frame: &mut Frame<'_>,
    text: &TableText,
    scrolled: usize,
    area: Rect,
    block: Block<'_>,
) {
    let widths = column_widths(text, area.width);
    let rows = text.rows.iter().enumerate().skip(scrolled);
    let rows = rows.map(|(index, cells)| {
        let row = Row::new(cells.iter().map(|cell| Cell::from(cell.as_str())));
        match text.marked.contains(&index) {
            true => row.style(Style::new().fg(Color::Red)),
            false => row,
        }
    });
    let header = Row::new(text.header.iter().map(String::as_str));
    let header = header.style(Style::new().add_modifier(Modifier::BOLD));
    let table = Table::new(rows, widths);
    let table = table.header(header).column_spacing(SPACING).block(block);
    frame.render_widget(table, area);
}

fn zone_text(rates: &CellRates) -> TableText {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut marked = Vec::new();
    for zone in rates.zones.iter().take(ZONES_SHOWN) {
        if zone.nodes_well < zone.nodes {
            marked.push(rows.len());
        }
        rows.push(vec![
            format!("{} {}", zone.id, shown(&zone.name)),
            format!("{} of {}", zone.nodes_well, zone.nodes),
            byte_size::rounded(zone.free_bytes),
            speed(zone.in_zone.read),
            speed(zone.cross_zone.read),
            speed(zone.in_zone.written),
            speed(zone.cross_zone.written),
            byte_size::rounded(zone.total_bytes),
        ]);
    }
    let left = rates.zones.len().saturating_sub(ZONES_SHOWN);
    if left > 0 {
        rows.push(vec![format!("{left} more")]);
    }
    let header = words(&[
        "ZONE",
        "WELL",
        "FREE",
        "READ IN-ZONE",
        "CROSS-ZONE",
        "WRITTEN IN-ZONE",
        "CROSS-ZONE",
        "CAPACITY",
    ]);
    TableText {
        header,
        rows,
        marked,
    }
}

fn table_text(rates: &CellRates, tab: ScreenTab) -> TableText {
    match tab {
        ScreenTab::Nodes => node_text(rates),
        ScreenTab::Traffic => matrix_text(rates),
        ScreenTab::Directories => directory_text(rates),
        ScreenTab::Operations => operation_text(rates),
        ScreenTab::FullTargets => full_target_text(rates),
    }
}

fn node_text(rates: &CellRates) -> TableText {
    let nodes = rates.nodes.iter().enumerate();
    let marked = nodes.filter(|(_, node)| node.state != NodeHealth::Well);
    let marked = marked.map(|(index, _)| index).collect();
    let rows = rates.nodes.iter().map(|node| {
        let has_targets = node.total_bytes > 0;
        let bytes = |of: fn(ByteRates) -> f64| {
            let known = node.bytes.filter(|_rates| has_targets);
            known.map_or("-".to_owned(), |rates| speed(of(rates)))
        };
        let (requests, cpu) = (node.requests, node.cpu_per_mille);
        vec![
            node.id.to_string(),
            node.zone.to_string(),
            match &node.state {
                NodeHealth::Well => "ok",
                NodeHealth::Silent => "silent",
                NodeHealth::Unwell(_) => "unwell",
            }
            .to_owned(),
            shown(&node.serves),
            match has_targets {
                true => byte_size::rounded(node.free_bytes),
                false => "-".to_owned(),
            },
            bytes(|rates| rates.read),
            bytes(|rates| rates.written),
            requests.map_or("-".to_owned(), |rate| format!("{rate:.0}/s")),
            cpu.map_or("-".to_owned(), |used| format!("{} %", used.div_ceil(10))),
            match &node.state {
                NodeHealth::Unwell(problem) => shown(problem),
                NodeHealth::Well | NodeHealth::Silent => shown(&node.address),
            },
        ]
    });
    let header = words(&[
        "NODE",
        "ZONE",
        "HEALTH",
        "SERVES",
        "FREE",
        "READ",
        "WRITTEN",
        "REQUESTS",
        "CPU",
        "ADDRESS, PROBLEM",
    ]);
    TableText {
        header,
        rows: rows.collect(),
        marked,
    }
}

fn matrix_text(rates: &CellRates) -> TableText {
    let (clients, targets) = rates.matrix_zones();
    let mut header = words(&["FROM ZONE"]);
    header.extend(
        targets
            .iter()
            .map(|zone| format!("TO {zone} READ, WRITTEN")),
    );
    let rows = clients.iter().map(|client| {
        let mut row = vec![match *client == ZoneId(0) {
            true => "others".to_owned(),
            false => client.to_string(),
        }];
        row.extend(targets.iter().map(|target| {
            let bytes = rates.matrix.get(&(*client, *target));
            bytes.map_or("-".to_owned(), |bytes| {
                format!("{}, {}", speed(bytes.read), speed(bytes.written))
            })
        }));
        row
    });
    TableText {
        header,
        rows: rows.collect(),
        marked: Vec::new(),
    }
}

fn directory_text(rates: &CellRates) -> TableText {
    let rows = rates.directories.iter().map(|row| {
        let name = match &row.path {
            Some(path) => shown(path),
            None if row.inode == Ino(0) => "others".to_owned(),
            None => format!("inode {}", row.inode),
        };
        vec![
            name,
            speed(row.in_zone.read),
            speed(row.cross_zone.read),
            speed(row.in_zone.written),
            speed(row.cross_zone.written),
        ]
    });
    let header = words(&[
        "DIRECTORY",
        "READ IN-ZONE",
        "READ CROSS-ZONE",
        "WRITTEN IN-ZONE",
        "WRITTEN CROSS-ZONE",
    ]);
    TableText {
        header,
        rows: rows.collect(),
        marked: Vec::new(),
    }
}

fn operation_text(rates: &CellRates) -> TableText {
    let rows = rates.operations.iter().map(|row| {
        vec![
            row.node.to_string(),
            shown(&row.service),
            shown(&row.operation),
            format!("{:.1}/s", row.per_second),
            time(row.mean_us),
            time(row.slowest_us),
        ]
    });
    let header = words(&["NODE", "SERVICE", "OPERATION", "RATE", "MEAN", "UP TO"]);
    TableText {
        header,
        rows: rows.collect(),
        marked: Vec::new(),
    }
}

fn full_target_text(rates: &CellRates) -> TableText {
    let rows = rates.full_targets.iter().map(|target| {
        let used = target.total_bytes.saturating_sub(target.free_bytes);
        let share = used as f64 / target.total_bytes.max(1) as f64;
        vec![
            target.id.to_string(),
            target.node.to_string(),
            target.zone.to_string(),
            byte_size::rounded(target.total_bytes),
            byte_size::rounded(target.free_bytes),
            format!("{:.1} %", share * 100.0),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    let header = words(&["TARGET", "NODE", "ZONE", "CAPACITY", "FREE", "USED"]);
    TableText {
        marked: (0..rows.len()).collect(),
        header,
        rows,
    }
}

#[cfg(test)]
mod tests;
